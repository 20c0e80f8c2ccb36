//! The scorer: decides whether the last user turn, in its context, needs facts that are not in the conversation.
//!
//! A linear model over features of wording, spelling, topics in nine languages, shape, supplied material and earlier
//! turns. Deterministic and pure; it can explain its scores. `training` creates the model from the labelled rows in
//! `data/`.

mod evaluation;
mod features;
mod labelled;
mod lexicon;
mod material;
mod model;
mod reasons;
mod text;
mod training;

use chat::Message;

pub use evaluation::{ConfusionMatrix, Evaluation};
use features::Features;
pub use labelled::{LabelledRequest, RowError, load_labelled, parse_labelled};
use lexicon::Lexicon;
pub(crate) use material::split_material;
use model::Model;
pub use training::{TrainingResult, evaluate_by_author, train};

/// Incremented with every change to the features, the lexicon or the model.
pub const VERSION: u16 = 5;
/// CRC-32 of the lexicon and of the model. A test compares them, so that a change requires a new version.
pub const CHECKSUMS: [u32; 2] = [0x6c27_9051, 0x8454_0082];

static MODEL: &[u8] = include_bytes!("model.bin");

pub struct Scorer {
    lexicon: Lexicon,
    model: Model,
}

/// Bounds the log odds of scores near 0 and 1.
const MIN_PROBABILITY: f32 = 0.001;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score(f32);

impl Score {
    /// From 0 (certainly no facts required) to 1 (certainly required).
    pub fn get(self) -> f32 {
        self.0
    }

    pub fn log_odds(self) -> f32 {
        let score = self.0.clamp(MIN_PROBABILITY, 1.0 - MIN_PROBABILITY);
        libm::logf(score / (1.0 - score))
    }

    pub fn is_required(self) -> bool {
        self.0 >= 0.5
    }
}

impl Scorer {
    /// With the built-in model.
    #[expect(clippy::new_without_default, reason = "parsing lexicon and model is work, not a default")]
    pub fn new() -> Self {
        Self::with_model(MODEL).expect("the model was built in")
    }

    /// `None` if the bytes are not a model.
    pub fn with_model(bytes: &[u8]) -> Option<Self> {
        Some(Self { lexicon: Lexicon::load(), model: Model::decode(bytes)? })
    }

    /// The score of the last user turn.
    pub fn score(&self, messages: &[Message]) -> Score {
        self.score_into(messages, &mut Features::new())
    }

    /// The score and its strongest reasons, strongest first.
    pub fn explain(&self, messages: &[Message]) -> (Score, Vec<String>) {
        let mut features = Features::named();
        let score = self.score_into(messages, &mut features);
        (score, reasons::strongest(&features, &self.model, score))
    }

    fn score_into(&self, messages: &[Message], features: &mut Features) -> Score {
        match features::extract(messages, &self.lexicon, features) {
            true => Score(self.model.score(&features.values)),
            // No user turn.
            false => Score(0.0),
        }
    }
}
