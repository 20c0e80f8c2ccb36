//! Training: a linear model from labelled rows, calibrated on held-out rows and quantized to bytes. Independent of time,
//! threads and machine: the same rows give the same bytes.

mod calibration;
mod linear;
mod shuffle;

use std::thread;

use calibration::Calibration;
use linear::Linear;

use super::evaluation::Evaluation;
use super::features::{self, Features};
use super::labelled::LabelledRequest;
use super::lexicon::Lexicon;
use super::model::{self, Model};

/// The cost of errors, relative to that of large weights (C of a support vector machine).
const ERROR_COST: f64 = 0.4;
/// Rows that were written to fill gaps count less, because they are harder than people's requests.
const OWN_ROW_WEIGHT: f64 = 0.25;
/// Of the cross-validation.
const FOLDS: u64 = 5;

struct Example<'a> {
    row: &'a LabelledRequest,
    label: bool,
    is_own: bool,
    cost: f64,
    group: u64,
    /// Bucket and value; each bucket once.
    buckets: Vec<(u32, f32)>,
}

pub struct TrainingResult {
    /// The model file.
    pub model: Vec<u8>,
    /// By cross-validation. Rows of one conversation stay in one fold.
    pub unseen: Evaluation,
}

/// Rows without a label are skipped.
pub fn train(rows: &[LabelledRequest], own_rows: &[LabelledRequest]) -> TrainingResult {
    let lexicon = Lexicon::load();
    let given = rows.iter().map(|row| (row, false));
    let examples: Vec<Example<'_>> = given
        .chain(own_rows.iter().map(|row| (row, true)))
        .filter_map(|(row, is_own)| Example::read(row, is_own, &lexicon))
        .collect();

    let (sums, linear) = thread::scope(|scope| {
        let examples = &examples;
        let all = scope.spawn(|| Linear::train(&examples.iter().collect::<Vec<_>>()));
        let folds: Vec<_> = (0..FOLDS).map(|fold| scope.spawn(move || score_held_out(examples, fold))).collect();
        let sums: Vec<(&Example<'_>, f64)> = folds.into_iter().flat_map(join).collect();
        (sums, join(all))
    });
    let calibration = Calibration::fit(&sums.iter().map(|(example, sum)| (*sum, example.label)).collect::<Vec<_>>());
    let mut unseen = Evaluation::default();
    for (example, sum) in &sums {
        unseen.add(&example.row.lang, &example.row.category, example.label, *sum >= calibration.threshold);
    }
    #[expect(clippy::cast_possible_truncation, reason = "weights are small, and are quantized to bytes anyway")]
    let model = Model::new(&linear.weights, (linear.bias - calibration.threshold) as f32, calibration.slope as f32);
    TrainingResult { model: model.encode(), unseen }
}

/// Propagates a panic.
fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The rows of one fold, with their sums by a model trained on the other folds.
fn score_held_out<'e, 'a>(examples: &'e [Example<'a>], fold: u64) -> Vec<(&'e Example<'a>, f64)> {
    let (out, taken): (Vec<_>, Vec<_>) = examples.iter().partition(|example| example.group % FOLDS == fold);
    let linear = Linear::train(&taken);
    out.into_iter().filter(|example| !example.is_own).map(|example| (example, linear.sum(example))).collect()
}

impl<'a> Example<'a> {
    fn read(row: &'a LabelledRequest, is_own: bool, lexicon: &Lexicon) -> Option<Self> {
        let label = row.required?;
        let mut extracted = Features::new();
        features::extract(&row.messages, lexicon, &mut extracted);
        let cost = if is_own { ERROR_COST * OWN_ROW_WEIGHT } else { ERROR_COST };
        Some(Self { row, label, is_own, cost, group: group(row), buckets: buckets(&extracted.values) })
    }
}

fn buckets(features: &[(u32, f32)]) -> Vec<(u32, f32)> {
    let bucket = |(hash, value): &(u32, f32)| (hash >> (u32::BITS - model::BUCKET_BITS), *value);
    let mut buckets: Vec<(u32, f32)> = features.iter().map(bucket).collect();
    buckets.sort_unstable_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    buckets.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 += next.1;
        }
        same
    });
    buckets
}

/// A hash of a row's opening, so that rows with the same opening stay in one fold.
fn group(row: &LabelledRequest) -> u64 {
    let opening = row.messages.first().map_or("", |message| message.content());
    opening
        .bytes()
        .take(80)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
