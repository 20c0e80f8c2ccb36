//! Have the indexed documents something to say to a request? A request may be answered without facts by the scorer's word,
//! because it is a statement or asks for advice, and still the documents answer it: "my badge does not open the door".
//!
//! What speaks for it: the scorer's score, whether the request is a question or a problem rather than a task (`Asks`), how
//! well the best passage fits, and whether it continues a conversation. Pure.

mod asks;

pub use asks::{Asks, asked, train};

use chat::{Message, Role};

use crate::index::Hit;
use crate::scorer::Score;

/// What a decision rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    pub score: Score,
    /// From `Asks`: above zero for a question or a problem, below for a task.
    pub asks: f32,
    /// The best hit's.
    pub best: f32,
    pub is_follow_up: bool,
}

/// Calibrated on the first set of `data/retrieval`, for which `examples/retrieval.rs` prints what they lead to.
const PER_SCORE: f32 = 0.75;
const PER_ASKS: f32 = 0.48;
const PER_BEST: f32 = 1.1;
const FOLLOW_UP: f32 = 2.6;
const BIAS: f32 = 2.0;

impl Evidence {
    /// For a conversation of that score, whose last turn has that vector.
    pub fn new(score: Score, turn: &[f32], asks: &Asks, messages: &[Message], hits: &[Hit]) -> Self {
        Self {
            score,
            asks: asks.sum(turn),
            best: hits.first().map_or(0.0, |hit| hit.score),
            is_follow_up: messages.iter().filter(|message| message.role() == Role::User).count() > 1,
        }
    }

    /// Above zero if the documents help.
    pub fn sum(&self) -> f32 {
        let follow_up = if self.is_follow_up { FOLLOW_UP } else { 0.0 };
        PER_SCORE * self.score.log_odds() + PER_ASKS * self.asks + PER_BEST * self.best + follow_up + BIAS
    }

    pub fn is_helpful(&self) -> bool {
        self.sum() > 0.0
    }
}
