//! The linear part: a support vector machine with squared hinge loss, solved by dual coordinate descent.

use super::Example;
use super::shuffle::Shuffle;
use crate::scorer::model::BUCKET_BITS;

const MAX_ROUNDS: usize = 40;
/// Training ends early when no coefficient changes by more than this.
const CONVERGENCE_TOLERANCE: f64 = 1e-3;
/// The value of the constant feature whose weight is the bias.
const BIAS_FEATURE: f64 = 0.5;

pub(super) struct Linear {
    pub(super) weights: Vec<f32>,
    pub(super) bias: f64,
}

impl Linear {
    /// Positive if facts are needed.
    pub(super) fn sum(&self, example: &Example<'_>) -> f64 {
        let one = |(bucket, value): &(u32, f32)| f64::from(self.weights[*bucket as usize] * value);
        example.buckets.iter().map(one).sum::<f64>() + self.bias
    }

    pub(super) fn train(examples: &[&Example<'_>]) -> Self {
        let slack: Vec<f64> = examples.iter().map(|example| 0.5 / example.cost).collect();
        let length = |example: &&Example<'_>| {
            example.buckets.iter().map(|(_, value)| f64::from(value * value)).sum::<f64>() + BIAS_FEATURE * BIAS_FEATURE
        };
        let lengths: Vec<f64> = examples.iter().map(length).collect();
        let mut solution = Self { weights: vec![0.0; 1 << BUCKET_BITS], bias: 0.0 };
        let mut alphas = vec![0.0_f64; examples.len()];
        let mut order: Vec<usize> = (0..examples.len()).collect();
        let mut shuffle = Shuffle::new(1);
        for _ in 0..MAX_ROUNDS {
            shuffle.shuffle(&mut order);
            let mut max_change = 0.0_f64;
            for &index in &order {
                let (example, alpha) = (examples[index], alphas[index]);
                let side = if example.label { 1.0 } else { -1.0 };
                let gradient = side * solution.sum(example) - 1.0 + slack[index] * alpha;
                alphas[index] = (alpha - gradient / (lengths[index] + slack[index])).max(0.0);
                let change = (alphas[index] - alpha) * side;
                if change != 0.0 {
                    max_change = max_change.max(change.abs());
                    solution.move_by(example, change);
                }
            }
            if max_change < CONVERGENCE_TOLERANCE {
                break;
            }
        }
        solution
    }

    fn move_by(&mut self, example: &Example<'_>, change: f64) {
        #[expect(clippy::cast_possible_truncation, reason = "weights are kept short")]
        let short = change as f32;
        for (bucket, value) in &example.buckets {
            self.weights[*bucket as usize] += short * value;
        }
        self.bias += change * BIAS_FEATURE * BIAS_FEATURE;
    }
}
