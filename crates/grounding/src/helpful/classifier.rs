//! Distinguishes questions and descriptions of problems from tasks, such as writing or translating: a linear model over the
//! vector of a request's last turn.

use chat::{Message, Role};

static MODEL: &[u8] = include_bytes!("classifier.bin");

/// Of a turn. The request is usually at its beginning, before any material.
const MAX_CHARS: usize = 400;

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
        let bias = self.weights.get(vector.len()).copied().unwrap_or(0.0);
        self.weights.iter().zip(vector).map(|(weight, number)| weight * number).sum::<f32>() + bias
    }
}

impl Default for QuestionClassifier {
    fn default() -> Self {
        Self::new()
    }
}

/// The beginning of the last user turn.
pub fn last_turn(messages: &[Message]) -> &str {
    let last =
        messages.iter().rev().find(|message| message.role() == Role::User).map_or("", |message| message.content());
    last.char_indices().nth(MAX_CHARS).map_or(last, |(end, _)| &last[..end])
}
