//! Histograms and counters that are cheap to update: a few atomic additions, no lock, no allocation.
//!
//! Values are integers in the unit of the bucket bounds. A thread that records often has a separate histogram, so that no
//! two threads write to the same memory; a reader merges the snapshots.

mod counters;

use std::sync::atomic::{AtomicU64, Ordering};

pub use self::counters::Counters;

#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One bucket for each bound, and one for values above the last.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// The contents of one histogram, or of several merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    bounds: &'static [u64],
    buckets: Vec<u64>,
    sum: u64,
}

impl Histogram {
    /// The bounds must ascend, and are inclusive: a value is counted in the first bucket whose bound it does not exceed.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    pub fn record(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Not atomic as a whole: a value that is being recorded may be in its bucket, but not yet in the sum.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            bounds: self.bounds,
            buckets: self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl Snapshot {
    pub fn empty(bounds: &'static [u64]) -> Self {
        Self { bounds, buckets: vec![0; bounds.len() + 1], sum: 0 }
    }

    /// Adds a snapshot with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.bounds, other.bounds, "only histograms with the same bounds can be merged");
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Each bucket's upper bound and count, not cumulative. The last bucket has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        bounds.zip(self.buckets.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: &[u64] = &[1, 4, 16];

    #[test]
    fn bounds_are_inclusive() {
        let histogram = Histogram::new(BOUNDS);
        [0, 1, 2, 4, 5, 16, 17].into_iter().for_each(|value| histogram.record(value));
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.buckets().collect::<Vec<_>>(), [(Some(1), 2), (Some(4), 2), (Some(16), 2), (None, 1)]);
        assert_eq!((snapshot.count(), snapshot.sum()), (7, 45));
    }

    proptest! {
        #[test]
        fn merged_histograms_equal_one_that_recorded_everything(
            values in proptest::collection::vec((0..100u64, 0..3usize), 0..100),
        ) {
            let (together, apart) = (Histogram::new(BOUNDS), [(); 3].map(|()| Histogram::new(BOUNDS)));
            for (value, which) in values {
                together.record(value);
                apart[which].record(value);
            }
            let mut merged = Snapshot::empty(BOUNDS);
            apart.iter().for_each(|part| merged.merge(&part.snapshot()));
            prop_assert_eq!(merged, together.snapshot());
        }
    }
}
