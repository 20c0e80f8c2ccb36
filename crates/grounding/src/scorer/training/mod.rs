//! Training: a linear model from labelled rows, calibrated on held-out rows and quantized to bytes. Independent of time,
//! threads and machine: the same rows give the same bytes.

mod calibration;
mod linear;
mod shuffle;

use std::collections::BTreeSet;
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
/// The same for rows in other languages than English, of which there are fewer.
const OWN_FOREIGN_ROW_WEIGHT: f64 = 0.75;
/// Of the cross-validation.
const FOLDS: u64 = 5;
/// Two authors each.
const AUTHOR_FOLDS: u64 = 6;

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
    let examples = read_examples(rows, own_rows);
    let (linear, (calibration, unseen)) = thread::scope(|scope| {
        let all = scope.spawn(|| Linear::train(&examples.iter().collect::<Vec<_>>()));
        let validated = cross_validate(&examples, FOLDS, |example| Some(example.group % FOLDS));
        (join(all), validated)
    });
    #[expect(clippy::cast_possible_truncation, reason = "weights are small, and are quantized to bytes anyway")]
    let model = Model::new(&linear.weights, (linear.bias - calibration.threshold) as f32, calibration.slope as f32);
    TrainingResult { model: model.encode(), unseen }
}

/// Evaluates models on the rows of authors of whom they have seen no row, because users are other authors.
pub fn evaluate_by_author(rows: &[LabelledRequest], own_rows: &[LabelledRequest]) -> Evaluation {
    let authors: BTreeSet<&str> = rows.iter().map(author).collect();
    let fold = |example: &Example<'_>| authors.iter().position(|known| *known == author(example.row));
    let fold = |example: &Example<'_>| Some(fold(example)? as u64 % AUTHOR_FOLDS);
    cross_validate(&read_examples(rows, own_rows), AUTHOR_FOLDS, fold).1
}

/// The author of a row: its id up to the first hyphen.
fn author(row: &LabelledRequest) -> &str {
    row.id.split('-').next().unwrap_or_default()
}

fn read_examples<'a>(rows: &'a [LabelledRequest], own_rows: &'a [LabelledRequest]) -> Vec<Example<'a>> {
    let lexicon = Lexicon::load();
    let given = rows.iter().map(|row| (row, false));
    let all = given.chain(own_rows.iter().map(|row| (row, true)));
    all.filter_map(|(row, is_own)| Example::read(row, is_own, &lexicon)).collect()
}

/// Scores each fold by a model of the other rows. Rows without a fold are in every training.
fn cross_validate<'a>(
    examples: &[Example<'a>],
    folds: u64,
    fold_of: impl Fn(&Example<'a>) -> Option<u64> + Sync,
) -> (Calibration, Evaluation) {
    let fold_of = &fold_of;
    let sums: Vec<(&Example<'_>, f64)> = thread::scope(|scope| {
        let score = |fold| scope.spawn(move || score_held_out(examples, |example| fold_of(example) == Some(fold)));
        let threads: Vec<_> = (0..folds).map(score).collect();
        threads.into_iter().flat_map(join).collect()
    });
    let calibration = Calibration::fit(&sums.iter().map(|(example, sum)| (*sum, example.label)).collect::<Vec<_>>());
    let mut unseen = Evaluation::default();
    for (example, sum) in &sums {
        unseen.add(&example.row.lang, &example.row.category, example.label, *sum >= calibration.threshold);
    }
    (calibration, unseen)
}

/// Propagates a panic.
fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The rows of one fold, with their sums by a model trained on the other rows.
fn score_held_out<'e, 'a>(
    examples: &'e [Example<'a>],
    is_held_out: impl Fn(&Example<'a>) -> bool,
) -> Vec<(&'e Example<'a>, f64)> {
    let (out, taken): (Vec<_>, Vec<_>) = examples.iter().partition(|example| is_held_out(example));
    let linear = Linear::train(&taken);
    out.into_iter().filter(|example| !example.is_own).map(|example| (example, linear.sum(example))).collect()
}

impl<'a> Example<'a> {
    fn read(row: &'a LabelledRequest, is_own: bool, lexicon: &Lexicon) -> Option<Self> {
        let label = row.required?;
        let mut extracted = Features::new();
        features::extract(&row.messages, lexicon, &mut extracted);
        let weight = match (is_own, row.lang.as_str()) {
            (false, _) => 1.0,
            (true, "en") => OWN_ROW_WEIGHT,
            (true, _) => OWN_FOREIGN_ROW_WEIGHT,
        };
        let cost = ERROR_COST * weight;
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
