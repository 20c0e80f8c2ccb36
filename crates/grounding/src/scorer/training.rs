//! Training: a linear support vector machine with squared hinge loss, solved by dual coordinate descent, then rounded to bytes.
//!
//! Nothing here depends on time, threads or the machine: the same rows give the same bytes.

use super::features::{self, Features};
use super::judgement::Judgement;
use super::labelled::Labelled;
use super::lexicon::Lexicon;
use super::model::{BITS, Model};

/// How much errors cost against large weights.
const COST: f64 = 0.3;
/// Rows that we wrote to fill gaps cost less: they are harder than what people ask.
const OUR_OWN: f64 = 0.25;
const ROUNDS: usize = 40;
/// Rounds end early when nothing moves more than this.
const STILL: f64 = 1e-3;
/// Parts of the data for judging rows by a model that has not seen them.
const FOLDS: u64 = 5;
/// The constant feature that stands for the bias.
const CONSTANT: f64 = 0.5;

struct Example<'a> {
    row: &'a Labelled,
    label: bool,
    cost: f64,
    group: u64,
    /// Bucket and value, each bucket once.
    features: Vec<(u32, f32)>,
}

/// What training gives.
pub struct Report {
    /// The model's file.
    pub model: Vec<u8>,
    /// How well rows are judged by models that have not seen them, nor others of the same conversation.
    pub unseen: Judgement,
}

/// Trains on labelled rows and on rows of our own; those without a label are left out.
pub fn train(rows: &[Labelled], our_own: &[Labelled]) -> Report {
    let lexicon = Lexicon::read();
    let examples: Vec<Example<'_>> = rows
        .iter()
        .map(|row| (row, COST))
        .chain(our_own.iter().map(|row| (row, COST * OUR_OWN)))
        .filter_map(|(row, cost)| example(row, cost, &lexicon))
        .collect();

    let mut sums = Vec::new();
    for fold in 0..FOLDS {
        let weights = solve(&examples, |example| example.group % FOLDS != fold);
        let held_out = examples.iter().filter(|example| example.group % FOLDS == fold && example.cost >= COST);
        sums.extend(held_out.map(|example| (example, weights.sum(example))));
    }
    let (border, slope) = calibrate(&sums);
    let mut unseen = Judgement::default();
    for (example, sum) in &sums {
        unseen.add(&example.row.lang, &example.row.category, example.label, *sum >= border);
    }
    let all = solve(&examples, |_| true);
    #[expect(clippy::cast_possible_truncation, reason = "weights are small, and are rounded to bytes anyway")]
    let model = Model::new(&all.weights, (all.bias - border) as f32, slope as f32);
    Report { model: model.encode(), unseen }
}

fn example<'a>(row: &'a Labelled, cost: f64, lexicon: &Lexicon) -> Option<Example<'a>> {
    let label = row.required?;
    let mut extracted = Features::new();
    features::extract(&row.messages, lexicon, &mut extracted);
    let mut features: Vec<(u32, f32)> =
        extracted.values.iter().map(|(hash, value)| (hash >> (u32::BITS - BITS), *value)).collect();
    features.sort_unstable_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    features.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 += next.1;
        }
        same
    });
    Some(Example { row, label, cost, group: group(row), features })
}

/// Rows that share their opening belong together: a number that is the same for all of them.
fn group(row: &Labelled) -> u64 {
    let opening = row.messages.first().map_or("", |message| message.content());
    opening
        .bytes()
        .take(80)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

struct Solution {
    weights: Vec<f32>,
    bias: f64,
}

impl Solution {
    fn sum(&self, example: &Example<'_>) -> f64 {
        let sum: f64 =
            example.features.iter().map(|(bucket, value)| f64::from(self.weights[*bucket as usize] * value)).sum();
        sum + self.bias
    }
}

fn solve(examples: &[Example<'_>], is_taken: impl Fn(&Example<'_>) -> bool) -> Solution {
    let taken: Vec<&Example<'_>> = examples.iter().filter(|example| is_taken(example)).collect();
    let slack: Vec<f64> = taken.iter().map(|example| 0.5 / example.cost).collect();
    let length = |example: &&Example<'_>| {
        example.features.iter().map(|(_, value)| f64::from(value * value)).sum::<f64>() + CONSTANT * CONSTANT
    };
    let lengths: Vec<f64> = taken.iter().map(length).collect();
    let mut solution = Solution { weights: vec![0.0; 1 << BITS], bias: 0.0 };
    let mut alphas = vec![0.0_f64; taken.len()];
    let mut order: Vec<usize> = (0..taken.len()).collect();
    let mut shuffle = Shuffle(1);
    for _ in 0..ROUNDS {
        shuffle.shuffle(&mut order);
        let mut most = 0.0_f64;
        for &index in &order {
            let (example, alpha) = (taken[index], alphas[index]);
            let side = if example.label { 1.0 } else { -1.0 };
            let gradient = side * solution.sum(example) - 1.0 + slack[index] * alpha;
            alphas[index] = (alpha - gradient / (lengths[index] + slack[index])).max(0.0);
            let change = (alphas[index] - alpha) * side;
            if change != 0.0 {
                most = most.max(change.abs());
                #[expect(clippy::cast_possible_truncation, reason = "weights are kept short")]
                let short = change as f32;
                for (bucket, value) in &example.features {
                    solution.weights[*bucket as usize] += short * value;
                }
                solution.bias += change * CONSTANT * CONSTANT;
            }
        }
        if most < STILL {
            break;
        }
    }
    solution
}

/// A small generator for a fixed order of visits.
struct Shuffle(u64);

impl Shuffle {
    fn shuffle(&mut self, order: &mut [usize]) {
        for last in (1..order.len()).rev() {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bound = u64::try_from(last).unwrap_or(u64::MAX) + 1;
            order.swap(last, usize::try_from((self.0 >> 33) % bound).unwrap_or(0));
        }
    }
}

/// Where the border between both verdicts is right most often (by F1), and how steeply the score should change there, so that
/// it tells how often a verdict with such a sum is right.
fn calibrate(sums: &[(&Example<'_>, f64)]) -> (f64, f64) {
    let mut sorted: Vec<(f64, bool)> = sums.iter().map(|(example, sum)| (*sum, example.label)).collect();
    sorted.sort_by(|one, other| other.0.total_cmp(&one.0));
    let wanted = sorted.iter().filter(|(_, label)| *label).count();
    let (mut found, mut best) = (0_usize, (0.0_f64, 0.0_f64));
    for (taken, (sum, label)) in sorted.iter().enumerate() {
        found += usize::from(*label);
        #[expect(clippy::cast_precision_loss, reason = "thousands of rows")]
        let f1 = 2.0 * found as f64 / (taken + 1 + wanted) as f64;
        if f1 > best.0 {
            best = (f1, *sum);
        }
    }
    let border = best.1;
    let loss = |slope: f64| -> f64 {
        let one = |(sum, label): &(f64, bool)| {
            let side = if *label { 1.0 } else { -1.0 };
            libm::log1p(libm::exp(-side * slope * (sum - border)))
        };
        sorted.iter().map(one).sum()
    };
    let (mut low, mut high) = (0.1, 20.0);
    for _ in 0..60 {
        let (one, other) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if loss(one) < loss(other) { high = other } else { low = one }
    }
    (border, f64::midpoint(low, high))
}
