//! Detects time that grows faster than the input: a piece is repeated to two lengths, one eight times the other.

use std::time::{Duration, Instant};

use fastrand::Rng;

const FACTOR: usize = 8;
/// Linear time has a ratio of 8, quadratic time a ratio of 64.
const MAX_RATIO: u32 = 24;
/// Shorter times do not matter, and are measured inaccurately.
const MIN_TIME: Duration = Duration::from_millis(2);
const MAX_PIECE_BYTES: usize = 24;
/// The first measurement excludes most inputs; the last one is reliable.
const TRIES: [usize; 3] = [1, 3, 6];

/// A part of the input, or a few words of the dictionary.
pub(crate) fn piece(input: &[u8], dictionary: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if rng.bool() && !dictionary.is_empty() {
        return (0..rng.usize(1..4)).flat_map(|_| dictionary[rng.usize(..dictionary.len())].clone()).collect();
    }
    let start = rng.usize(..=input.len());
    let end = input.len().min(start + rng.usize(1..=MAX_PIECE_BYTES));
    input[start..end].to_vec()
}

/// The measurements, if the time is more than linear.
pub(crate) fn superlinear(piece: &[u8], max_bytes: usize, run: impl Fn(&[u8])) -> Option<String> {
    let repeats = (max_bytes / piece.len().max(1) / FACTOR).max(1);
    let (small, large) = (piece.repeat(repeats), piece.repeat(repeats * FACTOR));
    let mut measured = String::new();
    for tries in TRIES {
        let best = |input: &[u8]| {
            let time = || {
                let began = Instant::now();
                run(input);
                began.elapsed()
            };
            (0..tries).map(|_| time()).min().unwrap_or_default()
        };
        let large_time = best(&large);
        if large_time < MIN_TIME {
            return None;
        }
        let small_time = best(&small);
        if large_time < small_time * MAX_RATIO {
            return None;
        }
        // A full second in each try cannot be caused by other processes.
        let is_certain = tries > 1 && large_time > Duration::from_secs(1);
        measured = format!("{} bytes {small_time:?}, {} bytes {large_time:?}", small.len(), large.len());
        if is_certain {
            break;
        }
    }
    Some(measured)
}
