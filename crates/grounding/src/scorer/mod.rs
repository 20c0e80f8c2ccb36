//! The scorer: does the last user turn, in its context, need facts that are not in the conversation?
//!
//! A linear model over features of wording, spelling, topics in nine languages, shape, supplied material and what went before.
//! Deterministic, pure, and able to say why. `training` makes the model from the labelled rows in `data/`.

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
pub use labelled::{LabelledRequest, RowError, parse_labelled};
use lexicon::Lexicon;
pub(crate) use material::split as split_material;
use model::Model;
pub use training::{TrainingResult, train};

/// Which scorer judged; raised with every change to the features, the lexicon or the model.
pub const VERSION: u16 = 4;
/// The CRC-32 of this version's lexicon and of its model: whoever changes one of them comes by here, and raises the version.
pub const CHECKSUMS: [u32; 2] = [0x6c27_9051, 0xd473_d644];

static MODEL: &[u8] = include_bytes!("model.bin");

/// Judges conversations.
pub struct Scorer {
    lexicon: Lexicon,
    model: Model,
}

/// What the scorer found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score(f32);

impl Score {
    /// From 0, surely not, to 1, surely.
    pub fn get(self) -> f32 {
        self.0
    }

    /// Whether facts are required.
    pub fn is_required(self) -> bool {
        self.0 >= 0.5
    }
}

impl Scorer {
    /// The scorer with the model that was built in.
    #[expect(clippy::new_without_default, reason = "reading lexicon and model is work, not a default")]
    pub fn new() -> Self {
        Self::with_model(MODEL).expect("the model was built in")
    }

    /// A scorer with a model of its own; none if these bytes are not a model.
    pub fn with_model(bytes: &[u8]) -> Option<Self> {
        Some(Self { lexicon: Lexicon::read(), model: Model::decode(bytes)? })
    }

    /// Judges the last user turn.
    pub fn score(&self, messages: &[Message]) -> Score {
        self.judge(messages, &mut Features::new())
    }

    /// Judges, and says why: what spoke most for the verdict, strongest first.
    pub fn explain(&self, messages: &[Message]) -> (Score, Vec<String>) {
        let mut features = Features::named();
        let score = self.judge(messages, &mut features);
        (score, reasons::strongest(&features, &self.model, score))
    }

    fn judge(&self, messages: &[Message], features: &mut Features) -> Score {
        match features::extract(messages, &self.lexicon, features) {
            true => Score(self.model.score(&features.values)),
            // Nobody asks anything.
            false => Score(0.0),
        }
    }
}
