//! Minimises a failing input.

use std::time::{Duration, Instant};

const MAX_TIME: Duration = Duration::from_secs(20);

/// Removes parts while the input still fails: first half of the input, at the end single bytes.
pub(crate) fn smallest(input: &[u8], fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let (began, mut smallest) = (Instant::now(), input.to_vec());
    let mut length = smallest.len().div_ceil(2).max(1);
    loop {
        let (mut at, mut removed) = (0, false);
        while at < smallest.len() && began.elapsed() < MAX_TIME {
            let mut without = smallest.clone();
            without.drain(at..(at + length).min(smallest.len()));
            match fails(&without) {
                true => (smallest, removed) = (without, true),
                false => at += length,
            }
        }
        if length == 1 && !removed || began.elapsed() >= MAX_TIME {
            return smallest;
        }
        length = if removed { length } else { (length / 2).max(1) };
        length = length.min(smallest.len().max(1));
    }
}
