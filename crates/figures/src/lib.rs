//! Distributions that are counted while requests run: a few atomic additions, no lock, nothing allocated.
//!
//! Values are whole numbers in whatever unit their bounds are in. Each thread that counts often has a histogram of its own,
//! so that no two write to the same memory; whoever reads adds them up.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is written to.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for what is beyond the last.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// What was counted so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    bounds: &'static [u64],
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    /// Nothing counted yet. The bounds ascend; a value belongs to the first one that it does not exceed.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub fn add(&self, value: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// What was counted so far. A value that is being counted just now may be in the counts and not yet in the sum.
    pub fn read(&self) -> Distribution {
        Distribution {
            bounds: self.bounds,
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl Distribution {
    /// Nothing, to be merged with others of the same bounds.
    pub fn none(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    /// Adds what was counted elsewhere with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.bounds, other.bounds, "only what has the same bounds can be added");
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many values belong to each bound; the last are those beyond all bounds.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        bounds.zip(self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: &[u64] = &[1, 4, 16];

    #[test]
    fn a_value_on_a_bound_belongs_to_it() {
        let histogram = Histogram::new(BOUNDS);
        [0, 1, 2, 4, 5, 16, 17].into_iter().for_each(|value| histogram.add(value));
        let read = histogram.read();
        assert_eq!(read.buckets().collect::<Vec<_>>(), [(Some(1), 2), (Some(4), 2), (Some(16), 2), (None, 1)]);
        assert_eq!((read.count(), read.sum()), (7, 45));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_who_counted_what(values in proptest::collection::vec((0..100u64, 0..3usize), 0..100)) {
            let (together, apart) = (Histogram::new(BOUNDS), [(); 3].map(|()| Histogram::new(BOUNDS)));
            for (value, who) in values {
                together.add(value);
                apart[who].add(value);
            }
            let mut sum = Distribution::none(BOUNDS);
            apart.iter().for_each(|part| sum.merge(&part.read()));
            prop_assert_eq!(sum, together.read());
        }
    }
}
