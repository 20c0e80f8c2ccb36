//! Vectors of passages and of questions, by the sentence encoder: those that mean the same point the same way. Text in a
//! language that the encoder does not know is translated word by word first (`glossary`).

mod glossary;
mod vector;

use std::path::Path;

use encoder::{Encoder, EncoderError};

use super::language::Language;
use glossary::Glossary;
pub(super) use vector::Vector;

/// Counted up when vectors of the same text change. Passages with others count as having none, until they are indexed again.
pub(super) const EMBEDDER: u32 = 1;

pub struct Embedder {
    encoder: Encoder,
    croatian: Glossary,
}

impl Embedder {
    /// Reads the encoder's file. Takes a part of a second.
    pub fn load(file: &Path) -> Result<Self, EncoderError> {
        Ok(Self { encoder: Encoder::load(file)?, croatian: Glossary::croatian() })
    }

    pub(super) fn passages(&self, texts: &[String], are_croatian: bool) -> Vec<Vector> {
        let vectors = match are_croatian {
            true => self.encoder.encode(&texts.iter().map(|text| self.croatian.translate(text)).collect::<Vec<_>>()),
            false => self.encoder.encode(texts),
        };
        vectors.iter().map(|numbers| Vector::quantize(numbers)).collect()
    }

    /// The language of a question is guessed.
    pub fn question(&self, text: &str) -> Vec<f32> {
        let translated = Language::is_croatian_question(text).then(|| self.croatian.translate(text));
        let text = translated.as_deref().unwrap_or(text);
        self.encoder.encode(&[text]).pop().unwrap_or_default()
    }
}
