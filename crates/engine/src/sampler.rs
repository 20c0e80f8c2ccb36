//! Draws a token from logits: the best one at temperature 0, else one from the softmax at that temperature. Exact:
//! every token can be drawn, with its own probability; nothing is sorted or cut off.
//!
//! Two passes over the logits: one for the maximum, one that sums up the weights by block. Then a point in the sum is
//! drawn, and only the block that it falls into is read again.

use kernels::{largest, sum_of_exponentials};

use crate::cache::Token;

/// Logits in a block. Weights within a block are summed in single precision, the blocks in double.
const BLOCK: usize = 256;

pub(crate) struct Sampler {
    random: fastrand::Rng,
    sums: Vec<f64>,
}

impl Sampler {
    pub(crate) fn new(random: fastrand::Rng) -> Self {
        Self { random, sums: Vec::new() }
    }

    pub(crate) fn sample(&mut self, logits: &[f32], temperature: f32) -> Token {
        let best = largest(logits);
        // No other token has a probability that a float can represent.
        if temperature < 1e-5 {
            return position_of(logits, best);
        }
        let inverse_temperature = 1.0 / temperature;
        self.sums.clear();
        let mut total = 0.0;
        for block in logits.chunks(BLOCK) {
            total += f64::from(sum_of_exponentials(block, best, inverse_temperature));
            self.sums.push(total);
        }
        let point = self.random.f64() * total;
        let at = self.sums.partition_point(|sum| *sum <= point).min(self.sums.len() - 1);
        let start = at * BLOCK;
        let block = &logits[start..logits.len().min(start + BLOCK)];
        let mut left = point - if at == 0 { 0.0 } else { self.sums[at - 1] };
        for (at, logit) in block.iter().enumerate() {
            left -= f64::from(weight(*logit, best, inverse_temperature));
            if left < 0.0 {
                return (start + at) as Token;
            }
        }
        // By rounding, the point may lie just beyond the last weight.
        (start + position_of(block, largest(block)) as usize) as Token
    }
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
    fn the_best_is_taken_at_temperature_zero_wherever_it_stands() {
        let mut sampler = Sampler::new(fastrand::Rng::with_seed(1));
        for at in [0, 1, 15, 16, 255, 256, 49_151] {
            let mut logits = vec![-3.0; 49_152];
            logits[at] = 2.5;
            assert_eq!(sampler.sample(&logits, 0.0), at as Token);
        }
    }

    #[test]
    fn tokens_are_drawn_as_often_as_their_probability_says() {
        const DRAWS: usize = 200_000;
        let mut random = fastrand::Rng::with_seed(7);
        let logits: Vec<f32> = (0..1000).map(|_| random.f32() * 6.0 - 3.0).collect();
        for temperature in [0.3, 0.7, 1.0, 2.0] {
            let weights: Vec<f64> =
                logits.iter().map(|logit| (f64::from(*logit) / f64::from(temperature)).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut counts = vec![0_u32; logits.len()];
            let mut sampler = Sampler::new(fastrand::Rng::with_seed(11));
            for _ in 0..DRAWS {
                counts[sampler.sample(&logits, temperature) as usize] += 1;
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
