//! Trains the classifier of questions and tasks (`helpful::classifier`) on the labelled rows of `data/`.
//!
//!     cargo run --profile quick -p grounding --example train_classifier -- ENCODER

use std::error::Error;
use std::path::Path;

use grounding::helpful::last_turn;
use grounding::index::SentenceEncoder;
use grounding::scorer::{LabelledRequest, load_labelled};

/// Categories of requests that need no facts about the world, but that documents may answer.
const PROBLEMS: [&str; 16] = [
    "advice", "decision", "howto", "router", "cleaning", "support", "home-repair", "hr", "work", "diy", "home",
    "feelings", "relationship", "pets", "parenting", "gadgets",
];
/// Compensates for their small number.
const PROBLEM_WEIGHT: f32 = 6.0;
const ROUNDS: usize = 400;
const RATE: f32 = 30.0;
const DECAY: f32 = 1e-4;

fn main() -> Result<(), Box<dyn Error>> {
    let encoder = std::env::args_os().nth(1).ok_or("the encoder's file is missing")?;
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut rows = load_labelled(&home.join("data"), "train-")?;
    rows.extend(load_labelled(&home.join("data"), "own-")?);
    let weights = train(&SentenceEncoder::load(Path::new(&encoder))?, &rows);
    let model: Vec<u8> = weights.into_iter().flat_map(f32::to_le_bytes).collect();
    std::fs::write(home.join("src/helpful/classifier.bin"), model)?;
    println!("{} rows", rows.len());
    Ok(())
}

/// A weight for each number of a vector, and the bias.
fn train(encoder: &SentenceEncoder, rows: &[LabelledRequest]) -> Vec<f32> {
    let with_bias = |mut vector: Vec<f32>| {
        vector.push(1.0);
        vector
    };
    let vectors: Vec<_> = rows.iter().map(|row| with_bias(encoder.vector(last_turn(&row.messages)))).collect();
    let targets: Vec<(f32, f32)> = rows.iter().map(target).collect();
    let total: f32 = targets.iter().map(|(_, weight)| weight).sum();
    let bias = encoder::DIMENSIONS;
    let mut weights = vec![0.0; bias + 1];
    for _ in 0..ROUNDS {
        let mut gradient = vec![0.0; weights.len()];
        for (vector, (label, weight)) in vectors.iter().zip(&targets) {
            let log_odds: f32 = weights.iter().zip(vector).map(|(weight, number)| weight * number).sum();
            let error = (1.0 / (1.0 + libm::expf(-log_odds)) - label) * weight / total;
            gradient.iter_mut().zip(vector).for_each(|(sum, number)| *sum += error * number);
        }
        for (at, (weight, slope)) in weights.iter_mut().zip(gradient).enumerate() {
            let decay = if at == bias { 0.0 } else { DECAY * *weight };
            *weight -= RATE * (slope + decay);
        }
    }
    weights
}

/// The label and its weight.
fn target(row: &LabelledRequest) -> (f32, f32) {
    let category = row.category.split('/').next().unwrap_or_default();
    match row.required {
        Some(true) => (1.0, 1.0),
        _ if PROBLEMS.contains(&category) || category.contains("advice") => (1.0, PROBLEM_WEIGHT),
        _ => (0.0, 1.0),
    }
}
