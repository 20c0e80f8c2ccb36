//! One counter for each value of a label.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub struct Counters<const COUNT: usize> {
    labels: [&'static str; COUNT],
    counts: [AtomicU64; COUNT],
}

impl<const COUNT: usize> Counters<COUNT> {
    pub fn new(labels: [&'static str; COUNT]) -> Self {
        Self { labels, counts: [const { AtomicU64::new(0) }; COUNT] }
    }

    /// Counts one for the label at this position.
    pub fn add(&self, position: usize) {
        self.counts[position].fetch_add(1, Ordering::Relaxed);
    }

    /// For a gauge.
    pub fn set(&self, position: usize, count: u64) {
        self.counts[position].store(count, Ordering::Relaxed);
    }

    /// The label values and their counts.
    pub fn read(&self) -> [(&'static str, u64); COUNT] {
        std::array::from_fn(|at| (self.labels[at], self.counts[at].load(Ordering::Relaxed)))
    }
}
