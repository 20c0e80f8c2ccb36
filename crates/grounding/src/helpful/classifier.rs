//! Distinguishes questions and descriptions of problems from tasks, such as writing or translating: a linear model over the
//! vector of a request's last turn.

use chat::{Message, Role};

use crate::index::SentenceEncoder;
use crate::scorer::LabelledRequest;

static MODEL: &[u8] = include_bytes!("classifier.bin");

/// Of a turn. The request is usually at its beginning, before any material.
const MAX_CHARS: usize = 400;
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

pub struct QuestionClassifier {
    /// One for each number of a vector, and the bias.
    weights: Vec<f32>,
}

impl QuestionClassifier {
    pub fn new() -> Self {
        Self {
            weights: MODEL
                .chunks_exact(4)
                .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect(),
        }
    }

    /// Above zero for a question or a problem, below zero for a task.
    pub fn log_odds(&self, vector: &[f32]) -> f32 {
        log_odds(&self.weights, vector)
    }
}

impl Default for QuestionClassifier {
    fn default() -> Self {
        Self::new()
    }
}

fn log_odds(weights: &[f32], vector: &[f32]) -> f32 {
    let bias = weights.get(vector.len()).copied().unwrap_or(0.0);
    weights.iter().zip(vector).map(|(weight, number)| weight * number).sum::<f32>() + bias
}

/// The beginning of the last user turn.
pub fn last_turn(messages: &[Message]) -> &str {
    let last =
        messages.iter().rev().find(|message| message.role() == Role::User).map_or("", |message| message.content());
    last.char_indices().nth(MAX_CHARS).map_or(last, |(end, _)| &last[..end])
}

/// Trains a model on the labelled requests. Returns the bytes of its file.
pub fn train(encoder: &SentenceEncoder, rows: &[LabelledRequest]) -> Vec<u8> {
    let vectors: Vec<Vec<f32>> = rows.iter().map(|row| encoder.vector(last_turn(&row.messages))).collect();
    let targets: Vec<(f32, f32)> = rows.iter().map(target).collect();
    let total: f32 = targets.iter().map(|(_, weight)| weight).sum();
    let mut weights = vec![0.0; encoder::DIMENSIONS + 1];
    for _ in 0..ROUNDS {
        let mut gradient = vec![0.0; weights.len()];
        for (vector, (label, weight)) in vectors.iter().zip(&targets) {
            let error = (1.0 / (1.0 + libm::expf(-log_odds(&weights, vector))) - label) * weight / total;
            gradient.iter_mut().zip(vector.iter().chain(&[1.0])).for_each(|(sum, number)| *sum += error * number);
        }
        let bias = weights.len() - 1;
        for (at, (weight, slope)) in weights.iter_mut().zip(gradient).enumerate() {
            let decay = if at == bias { 0.0 } else { DECAY * *weight };
            *weight -= RATE * (slope + decay);
        }
    }
    weights.into_iter().flat_map(f32::to_le_bytes).collect()
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
