//! Draws a token from logits: the best one at temperature 0, otherwise one from the softmax at that temperature. Exact:
//! every token is drawn with its own probability; nothing is sorted or cut off.
//!
//! Takes two passes over the logits: one for the maximum, and one that sums the weights by block. Then a point in the sum
//! is drawn, and only the block that it falls into is read again.

use std::cell::RefCell;

use kernels::{largest, sum_of_exponentials};
use rayon::prelude::*;

use crate::cache::Token;

/// Logits in a block. Weights within a block are summed in single precision, the blocks in double.
const BLOCK: usize = 256;

/// The distribution of one token.
pub(crate) struct Row<'a> {
    pub(crate) logits: &'a [f32],
    pub(crate) temperature: f32,
}

pub(crate) struct Sampler {
    random: fastrand::Rng,
    /// For models on GPUs, where the CPUs are otherwise idle.
    threads: Option<rayon::ThreadPool>,
}

impl Sampler {
    /// Samples on the caller's thread.
    pub(crate) fn new(random: fastrand::Rng) -> Self {
        Self { random, threads: None }
    }

    /// Samples on this number of threads, if they can be started.
    pub(crate) fn with_threads(self, threads: usize) -> Self {
        let pool = (threads > 1).then(|| rayon::ThreadPoolBuilder::new().num_threads(threads).build());
        Self { threads: pool.and_then(Result::ok), ..self }
    }

    /// Draws a token for each row; `None` if its logits are not finite.
    pub(crate) fn sample(&mut self, rows: &[Row<'_>]) -> Vec<Option<Token>> {
        let points: Vec<f64> = rows.iter().map(|_| self.random.f64()).collect();
        let draw = |(row, point): (&Row<'_>, &f64)| draw(row, *point);
        match &self.threads {
            Some(threads) if rows.len() > 1 => threads.install(|| rows.par_iter().zip(&points).map(draw).collect()),
            _ => rows.iter().zip(&points).map(draw).collect(),
        }
    }
}

/// The token at a point of the distribution, from 0 to 1.
fn draw(row: &Row<'_>, point: f64) -> Option<Token> {
    thread_local! {
        static SUMS: RefCell<Vec<f64>> = RefCell::default();
    }
    let Row { logits, temperature } = *row;
    let best = Some(largest(logits)).filter(|best| best.is_finite())?;
    // The probability of every other token rounds to 0.
    if temperature < 1e-5 {
        return Some(position_of(logits, best));
    }
    let inverse_temperature = 1.0 / temperature;
    let (at, mut left) = SUMS.with_borrow_mut(|sums| {
        sums.clear();
        let mut total = 0.0;
        for block in logits.chunks(BLOCK) {
            total += f64::from(sum_of_exponentials(block, best, inverse_temperature));
            sums.push(total);
        }
        let point = point * total;
        let at = sums.partition_point(|sum| *sum <= point).min(sums.len() - 1);
        (at, point - if at == 0 { 0.0 } else { sums[at - 1] })
    });
    let start = at * BLOCK;
    let block = &logits[start..logits.len().min(start + BLOCK)];
    for (at, logit) in block.iter().enumerate() {
        left -= f64::from(weight(*logit, best, inverse_temperature));
        if left < 0.0 {
            return Some((start + at) as Token);
        }
    }
    // By rounding, the point may lie just beyond the last weight.
    Some((start + position_of(block, largest(block)) as usize) as Token)
}

fn position_of(logits: &[f32], value: f32) -> Token {
    logits.iter().position(|logit| *logit == value).unwrap_or(0) as Token
}

/// exp((logit - best) / temperature)
fn weight(logit: f32, best: f32, inverse_temperature: f32) -> f32 {
    ((logit - best) * inverse_temperature).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_token_at_any_position_is_taken_at_temperature_zero() {
        let mut sampler = Sampler::new(fastrand::Rng::with_seed(1));
        for at in [0, 1, 15, 16, 255, 256, 49_151] {
            let mut logits = vec![-3.0; 49_152];
            logits[at] = 2.5;
            assert_eq!(sampler.sample(&[Row { logits: &logits, temperature: 0.0 }]), [Some(at as Token)]);
        }
    }

    #[test]
    fn logits_that_are_not_finite_give_no_token() {
        let mut sampler = Sampler::new(fastrand::Rng::with_seed(1));
        for odd in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![-3.0; 1_000];
            logits[700] = odd;
            for temperature in [0.0, 1.0] {
                assert_eq!(sampler.sample(&[Row { logits: &logits, temperature }]), [None]);
            }
        }
    }

    #[test]
    fn tokens_are_drawn_with_the_frequency_of_their_probability() {
        const DRAWS: usize = 200_000;
        const ROWS: usize = 50;
        let mut random = fastrand::Rng::with_seed(7);
        let logits: Vec<f32> = (0..1000).map(|_| random.f32() * 6.0 - 3.0).collect();
        for (temperature, threads) in [(0.3, 1), (0.7, 1), (1.0, 2), (2.0, 4)] {
            let weights: Vec<f64> =
                logits.iter().map(|logit| (f64::from(*logit) / f64::from(temperature)).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut counts = vec![0_u32; logits.len()];
            let mut sampler = Sampler::new(fastrand::Rng::with_seed(11)).with_threads(threads);
            for _ in 0..DRAWS / ROWS {
                let rows = [(); ROWS].map(|()| Row { logits: &logits, temperature });
                sampler.sample(&rows).into_iter().flatten().for_each(|token| counts[token as usize] += 1);
            }
            let expected = weights.iter().map(|weight| weight / total * DRAWS as f64);
            let squares = counts.iter().zip(expected).map(|(got, expected)| {
                let difference = f64::from(*got) - expected;
                difference * difference / expected
            });
            // Chi-squared with 999 degrees of freedom exceeds 1,170 once in ten thousand times; the seed is fixed.
            let statistic: f64 = squares.sum();
            assert!(statistic < 1170.0, "at {temperature}: {statistic}");
        }
    }
}
