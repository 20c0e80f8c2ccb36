//! The built-in sentence encoder. Text in a language that it does not know is first translated word by word (`glossary`).

use std::borrow::Cow;
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
        Self::as_question(&self.vector(text))
    }

    /// The vector of a turn or a question, whose language is detected.
    pub fn vector(&self, text: &str) -> Vec<f32> {
        let [vector] = self.vectors([text]);
        vector
    }

    /// The vectors of a turn and of the question that is searched for it.
    pub(crate) fn question_and_turn(&self, question: &str, turn: &str) -> (QuestionVector, Vec<f32>) {
        let [question, turn] = self.vectors([question, turn]);
        (Self::as_question(&question), turn)
    }

    /// Two texts together take hardly longer than one.
    fn vectors<const COUNT: usize>(&self, texts: [&str; COUNT]) -> [Vec<f32>; COUNT] {
        let texts = texts.map(|text| match Language::is_croatian_question(text) {
            true => Cow::Owned(self.croatian.translate(text)),
            false => Cow::Borrowed(text),
        });
        let mut vectors = self.encoder.encode(&texts).into_iter();
        std::array::from_fn(|_| vectors.next().unwrap_or_default())
    }

    fn as_question(vector: &[f32]) -> QuestionVector {
        QuestionVector::new(Self::ID, vector, Scale::OF_SENTENCE_ENCODER)
    }
}
