//! Which cells the queries of a tile see.

use std::ops::Range;

use crate::hook::Operation;
use crate::lanes::{BLOCK, HIDDEN, Vector};

/// A piece of work: cells, and the tokens of a tile that see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A block of which several tokens see a large part. They are computed together.
    Together {
        start: usize,
        /// A bit for each token of the tile.
        tokens: u64,
        /// The start within `View::visible` of the cells that each of those tokens sees. `None` if all see all of them.
        visible: Option<usize>,
    },
    /// Scattered cells that one token sees.
    Alone {
        token: usize,
        /// Within `View::cells`.
        cells: Range<usize>,
    },
}

/// What the tokens of a tile see.
#[derive(Default)]
pub(crate) struct View {
    pub(crate) pieces: Vec<Piece>,
    /// The cost of all pieces before each one, and the total at the end.
    pub(crate) offsets: Vec<usize>,
    /// Cells of pieces for one token.
    pub(crate) cells: Vec<u32>,
    /// For tokens of blocks, a bit for each cell that they see.
    pub(crate) visible: Vec<u64>,
    /// Whether the mask is other than 0 for any visible cell.
    pub(crate) is_biased: bool,
    /// Scattered cells by token, while the mask is read.
    scattered: Vec<Vec<u32>>,
}

/// A token that sees fewer cells of a block is computed faster with these cells alone.
const MIN_CELLS: u32 = 24;

impl View {
    /// The cost of all pieces, in units of about a cycle.
    pub(crate) fn cost(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Reads the mask of some tokens.
    ///
    /// # Safety
    /// The CPU must have the vector's instructions, and the operation must describe memory as the library lays it out.
    #[inline(always)]
    pub(crate) unsafe fn read<V: Vector>(&mut self, operation: &Operation, tokens: Range<usize>) {
        let (cells, group) = (operation.cells as usize, operation.group());
        self.pieces.clear();
        self.offsets.clear();
        self.cells.clear();
        self.visible.clear();
        self.is_biased = false;
        self.scattered.resize_with(tokens.len().max(self.scattered.len()), Vec::new);
        self.scattered.iter_mut().for_each(Vec::clear);
        let (mut offset, mut visible) = (0, [0_u64; 64]);
        for start in (0..cells).step_by(BLOCK) {
            let (mut dense, mut uniform, mut any) = (0_u64, true, 0);
            for (at, token) in tokens.clone().enumerate() {
                // SAFETY: the token and the block are within the mask.
                let (seen, unbiased) = unsafe { seen::<V>(operation, token, start, BLOCK.min(cells - start)) };
                visible[at] = seen;
                any |= seen;
                self.is_biased |= seen & !unbiased != 0;
                if seen.count_ones() >= MIN_CELLS {
                    dense |= 1 << at;
                    uniform &= seen == u64::MAX;
                }
            }
            if any == 0 {
                continue;
            }
            if dense.count_ones() as usize * group < V::COUNT / 2 {
                dense = 0;
            }
            if dense != 0 {
                let seen = (!uniform).then_some(self.visible.len());
                self.pieces.push(Piece::Together { start, tokens: dense, visible: seen });
                if seen.is_some() {
                    self.visible.extend((0..tokens.len()).filter(|at| dense >> at & 1 == 1).map(|at| visible[at]));
                }
                self.offsets.push(offset);
                let rows = (dense.count_ones() as usize * group).next_multiple_of(V::COUNT);
                offset += BLOCK * (10 + 4 * rows);
            }
            for (at, scattered) in self.scattered.iter_mut().enumerate().take(tokens.len()) {
                if dense >> at & 1 == 0 {
                    let mut left = visible[at];
                    while left != 0 {
                        scattered.push((start + left.trailing_zeros() as usize) as u32);
                        left &= left - 1;
                    }
                }
            }
        }
        for (token, scattered) in self.scattered.iter().enumerate().take(tokens.len()) {
            for piece in scattered.chunks(BLOCK) {
                let from = self.cells.len();
                self.cells.extend_from_slice(piece);
                self.pieces.push(Piece::Alone { token, cells: from..self.cells.len() });
                self.offsets.push(offset);
                offset += piece.len() * (12 + 8 * group);
            }
        }
        self.offsets.push(offset);
    }
}

/// The cells of a block that a token sees, and those of them without a bias. Cells beyond the last are hidden.
///
/// # Safety
/// As for `View::read`; the token and the cells must be within the mask.
#[inline(always)]
unsafe fn seen<V: Vector>(operation: &Operation, token: usize, start: usize, cells: usize) -> (u64, u64) {
    let existing = if cells == BLOCK { u64::MAX } else { (1 << cells) - 1 };
    if operation.mask.is_null() {
        return (existing, existing);
    }
    // SAFETY: the caller's.
    let mask = unsafe { operation.mask.add(token * operation.mask_token).cast::<u16>().add(start) };
    if cells == BLOCK {
        // SAFETY: the mask has a whole block here.
        return unsafe { V::visible(mask) };
    }
    let mut padded = [HIDDEN; BLOCK];
    // SAFETY: both have at least this number of cells.
    unsafe { std::ptr::copy_nonoverlapping(mask, padded.as_mut_ptr(), cells) };
    // SAFETY: the copy has as many cells as a block.
    unsafe { V::visible(padded.as_ptr()) }
}
