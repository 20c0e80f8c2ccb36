//! A model of llama.cpp's unified cache for tests: cells with a position and the set of sequences that see them. Each
//! cell also has a digest of all tokens up to it, so that a test fails if a sequence sees another one's text.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::cache::{CellOp, Sequence, Token};

pub(crate) struct Cell {
    position: usize,
    digest: u64,
    seen_by: BTreeSet<Sequence>,
}

#[derive(Default)]
pub(crate) struct Cells(Vec<Cell>);

impl Cells {
    pub(crate) fn used(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn apply(&mut self, ops: &[CellOp]) {
        for op in ops {
            match op {
                CellOp::Share { from, to, positions } => {
                    for cell in self.0.iter_mut().filter(|cell| positions.contains(&cell.position)) {
                        if cell.seen_by.contains(from) {
                            cell.seen_by.insert(*to);
                        }
                    }
                }
                CellOp::Release { sequence, positions } => {
                    for cell in self.0.iter_mut().filter(|cell| positions.contains(&cell.position)) {
                        cell.seen_by.remove(sequence);
                    }
                    self.0.retain(|cell| !cell.seen_by.is_empty());
                }
            }
        }
    }

    /// Computes a token. The sequence must see exactly one cell at each position before it, and none from it on.
    pub(crate) fn compute(&mut self, sequence: Sequence, position: usize, token: Token) -> u64 {
        let seen = self.digests(sequence);
        assert_eq!(seen.len(), position, "sequence {sequence:?} sees other cells than those before its token");
        let digest = chain(seen.last().copied().unwrap_or_default(), token);
        self.0.push(Cell { position, digest, seen_by: BTreeSet::from([sequence]) });
        digest
    }

    fn digests(&self, sequence: Sequence) -> Vec<u64> {
        let mut seen: Vec<_> = self.0.iter().filter(|cell| cell.seen_by.contains(&sequence)).collect();
        seen.sort_by_key(|cell| cell.position);
        for (expected, cell) in seen.iter().enumerate() {
            assert_eq!(cell.position, expected, "sequence {sequence:?} sees a position twice, or not at all");
        }
        seen.iter().map(|cell| cell.digest).collect()
    }
}

pub(crate) fn digest_of(tokens: &[Token]) -> u64 {
    tokens.iter().fold(0, |digest, token| chain(digest, *token))
}

fn chain(before: u64, token: Token) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, token).hash(&mut hasher);
    hasher.finish()
}
