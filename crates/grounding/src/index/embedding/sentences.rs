//! The built-in sentence encoder. Text in a language that it does not know is first translated word by word (`glossary`).

use std::path::Path;

use encoder::{Encoder, EncoderError};

use super::super::language::Language;
use super::glossary::Glossary;
use super::{EmbedderId, QuestionVector, Scale};

pub struct SentenceEncoder {
    encoder: Encoder,
    croatian: Glossary,
}

impl SentenceEncoder {
    /// Incremented when the vectors of the same text change.
    pub(super) const ID: EmbedderId = EmbedderId(1);

    /// Reads the encoder's file. Takes a fraction of a second.
    pub fn load(file: &Path) -> Result<Self, EncoderError> {
        Ok(Self { encoder: Encoder::load(file)?, croatian: Glossary::croatian() })
    }

    pub(super) fn passages(&self, texts: &[String], are_croatian: bool) -> Vec<Vec<f32>> {
        match are_croatian {
            true => self.encoder.encode(&texts.iter().map(|text| self.croatian.translate(text)).collect::<Vec<_>>()),
            false => self.encoder.encode(texts),
        }
    }

    pub fn question(&self, text: &str) -> QuestionVector {
        QuestionVector::new(Self::ID, &self.vector(text), Scale::OF_SENTENCE_ENCODER)
    }

    /// The vector of a turn or a question, whose language is detected.
    pub fn vector(&self, text: &str) -> Vec<f32> {
        let translated = Language::is_croatian_question(text).then(|| self.croatian.translate(text));
        self.encoder.encode(&[translated.as_deref().unwrap_or(text)]).pop().unwrap_or_default()
    }
}
