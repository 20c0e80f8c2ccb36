//! The tree against a model of the cells.

use super::*;
use crate::cells::{Cells, digest_of};

/// A cache, the cells it decides about, and what every running sequence should hold.
struct World {
    cache: PrefixCache,
    cells: Cells,
    running: Vec<(Sequence, Vec<Token>, usize)>,
}

impl World {
    fn new(capacity: usize, sequences: u16) -> Self {
        Self { cache: PrefixCache::new(capacity, sequences), cells: Cells::default(), running: Vec::new() }
    }

    fn start(&mut self, prompt: &[Token], max_tokens: usize) -> Option<Started> {
        let mut ops = Vec::new();
        let started = self.cache.start(&Scope::default(), prompt, max_tokens, &mut ops);
        self.cells.apply(&ops);
        if let Some(started) = started {
            self.running.push((started.sequence, prompt.to_vec(), max_tokens));
        }
        started
    }

    /// Computes at most `limit` pending tokens of a sequence. Returns whether its whole text is now computed.
    fn compute(&mut self, at: usize, limit: usize) -> bool {
        let (sequence, text, _) = &self.running[at];
        let (start, tokens) = self.cache.pending(*sequence, limit);
        let mut digest = None;
        for (position, token) in (start..).zip(&tokens) {
            digest = Some(self.cells.compute(*sequence, position, *token));
        }
        let mut ops = Vec::new();
        self.cache.computed(*sequence, tokens.len(), &mut ops);
        self.cells.apply(&ops);
        let whole = start + tokens.len() == text.len();
        if let (true, Some(digest)) = (whole, digest) {
            assert_eq!(digest, digest_of(text), "the sequence was computed after a different text");
        }
        whole
    }

    fn generate(&mut self, at: usize, token: Token) {
        let (sequence, text, left) = &mut self.running[at];
        *left -= 1;
        text.push(token);
        self.cache.push(*sequence, token);
    }

    fn finish(&mut self, at: usize) {
        let (sequence, ..) = self.running.swap_remove(at);
        let mut ops = Vec::new();
        self.cache.finish(sequence, &mut ops);
        self.cells.apply(&ops);
    }

    fn age(&mut self, by: u64, ttl: u64) {
        let mut ops = Vec::new();
        self.cache.age(by, ttl, &mut ops);
        self.cells.apply(&ops);
    }

    fn run(&mut self, prompt: &[Token], completion: &[Token]) -> Started {
        let started = self.start(prompt, completion.len()).expect("there are enough cells");
        let at = self.running.len() - 1;
        assert!(self.compute(at, usize::MAX));
        for token in completion {
            self.generate(at, *token);
            assert!(self.compute(at, 1));
        }
        self.finish(at);
        started
    }
}

#[test]
fn a_continued_conversation_computes_only_its_new_tokens() {
    let mut world = World::new(100, 4);
    world.run(&[1, 2, 3], &[4, 5]);
    let next = world.run(&[1, 2, 3, 4, 5, 6, 7], &[8]);
    assert_eq!(next.shared, 5);
}

#[test]
fn the_last_token_of_a_prompt_is_computed_even_if_it_is_cached() {
    let mut world = World::new(100, 4);
    world.run(&[1, 2, 3, 4], &[5]);
    assert_eq!(world.run(&[1, 2, 3, 4], &[6]).shared, 3);
    // Both completions are cached now.
    assert_eq!(world.run(&[1, 2, 3, 4, 5, 9], &[1]).shared, 5);
    assert_eq!(world.run(&[1, 2, 3, 4, 6, 9], &[1]).shared, 5);
}

#[test]
fn concurrent_requests_compute_a_common_prefix_once() {
    let mut world = World::new(100, 4);
    let system = [1, 1, 1, 1, 1, 1];
    for own in 2..5 {
        let prompt: Vec<_> = system.iter().copied().chain([own, 9]).collect();
        let shared = if own == 2 { 0 } else { system.len() };
        assert_eq!(world.start(&prompt, 1).map(|started| started.shared), Some(shared));
    }
    assert!(!world.compute(1, 100), "the second waits for the first");
    assert_eq!(world.cells.used(), 0);
    assert!(world.compute(0, 100));
    assert_eq!(world.cache.shared(), system.len(), "the prefix is the only part that several sequences see");
    assert!(world.compute(1, 100) && world.compute(2, 100));
    assert_eq!(world.cells.used(), system.len() + 3 * 2);
    assert_eq!(world.cache.shared(), system.len());
}

#[test]
fn nothing_is_shared_beyond_a_scope() {
    let (mut cache, mut ops) = (PrefixCache::new(100, 8), Vec::new());
    let mut start = |scope: &str| cache.start(&scope.into(), &[1, 2, 3, 4], 1, &mut ops).unwrap().shared;
    assert_eq!([start("one"), start("other"), start("one"), start("other")], [0, 0, 3, 3]);
}

#[test]
fn another_sequence_continues_where_the_first_was_cancelled() {
    let mut world = World::new(100, 4);
    world.start(&[1, 2, 3, 4, 5, 6], 1);
    world.start(&[1, 2, 3, 4, 5, 7], 1);
    world.compute(0, 2);
    world.finish(0);
    assert!(world.compute(0, 100));
    assert_eq!(world.cells.used(), 6);
}

#[test]
fn cells_are_reserved_at_the_start_and_the_least_recently_used_are_evicted() {
    let mut world = World::new(12, 4);
    world.run(&[1, 1, 1], &[1]);
    world.age(1, 100);
    world.run(&[2, 2, 2], &[2]);
    assert!(world.start(&[3; 10], 9).is_none(), "more than the capacity");
    assert_eq!(world.cells.used(), 8, "a refused start evicts nothing");
    assert!(world.start(&[3, 3, 3], 4).is_some());
    world.running.clear();
    assert_eq!(world.cells.used(), 4, "the older prefix was evicted");
    assert_eq!(world.cache.longest_prefix(&Scope::default(), &[2, 2, 2]).1, 3);
}

#[test]
fn no_cell_is_leaked_or_freed_twice_over_a_million_random_operations() {
    for (seed, capacity, sequences) in [(1, 60, 6), (2, 200, 16), (3, 25, 3), (4, 1000, 5)] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(capacity, sequences);
        for _ in 0..250_000 {
            match random.u8(0..20) {
                0..4 => {
                    let length = random.usize(1..20);
                    let prompt: Vec<_> = (0..length).map(|_| random.i32(0..2)).collect();
                    world.start(&prompt, random.usize(1..6));
                }
                4 => world.age(1, random.u64(0..40)),
                5 | 6 if !world.running.is_empty() => world.finish(random.usize(0..world.running.len())),
                7.. if !world.running.is_empty() => {
                    let at = random.usize(0..world.running.len());
                    if world.compute(at, random.usize(1..8)) {
                        match world.running[at].2 {
                            0 => world.finish(at),
                            _ => world.generate(at, random.i32(0..2)),
                        }
                    }
                }
                _ => {}
            }
            assert!(world.cells.used() <= world.cache.used() && world.cache.used() <= capacity);
        }
        while !world.running.is_empty() {
            world.finish(0);
        }
        assert_eq!(world.cells.used(), world.cache.used(), "all reserved cells are released");
        world.age(1_000_000, 0);
        assert_eq!((world.cells.used(), world.cache.used()), (0, 0));
        assert_eq!(world.cache.free_sequences.len(), usize::from(sequences));
        assert_eq!(world.cache.nodes.len(), 1);
    }
}
