//! Vectors of passages and questions: texts with the same meaning have similar vectors. They come from the sentence encoder,
//! or from any server with OpenAI's `/embeddings`. `scale` makes the cosines of all embedders comparable.

mod glossary;
mod scale;
mod sentences;
mod server;
mod vector;

use std::fmt;
use std::sync::Arc;

use pulp::Arch;

pub(super) use scale::Scale;
pub use sentences::SentenceEncoder;
pub use server::{EmbeddingsServer, EmbeddingsUrl, EmbeddingsUrlError, Prefixes, ServedModel};
use vector::DotPrefixes;
pub(super) use vector::{Prefix, Vector};

use crate::search::SearchError;

/// Identifies an embedder. Vectors of different embedders are not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EmbedderId(u32);

impl fmt::Display for EmbedderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A source of vectors.
#[derive(Clone)]
pub enum Embedder {
    Sentences(Arc<SentenceEncoder>),
    Server(Arc<EmbeddingsServer>),
}

/// The vector of a question.
#[derive(Debug, Clone)]
pub struct QuestionVector {
    pub(super) embedder: EmbedderId,
    vector: Vector,
    prefix: Prefix,
    length: f32,
    scale: Scale,
}

impl QuestionVector {
    fn new(embedder: EmbedderId, numbers: &[f32], scale: Scale) -> Self {
        let vector = Vector::quantize(numbers);
        Self { embedder, length: vector.length(), prefix: vector.prefix(), vector, scale }
    }

    /// The cosine with a passage's vector of this length, on the sentence encoder's scale.
    pub(super) fn cosine(&self, numbers: &[i8], length: f32) -> f32 {
        self.scale.apply(self.vector.dot(numbers) as f32 / (self.length * length))
    }

    /// The gain of the best passage by words, beside the cosine.
    pub(super) fn words_weight(&self) -> f32 {
        self.scale.words_weight
    }

    /// The products with the beginnings of passages' vectors.
    pub(super) fn dot_prefixes(&self, prefixes: &[(Prefix, f32)]) -> Vec<i32> {
        Arch::new().dispatch(DotPrefixes { question: &self.prefix, prefixes })
    }
}

#[cfg(test)]
impl EmbedderId {
    pub(super) const fn of_test(id: u32) -> Self {
        Self(id)
    }
}

#[cfg(test)]
impl QuestionVector {
    pub(super) fn of_test(embedder: EmbedderId, numbers: &[f32]) -> Self {
        Self::new(embedder, numbers, Scale::OF_SENTENCE_ENCODER)
    }
}

impl Embedder {
    /// Blocks while a server responds, like the other functions.
    pub(super) fn id(&self) -> Result<EmbedderId, SearchError> {
        match self {
            Self::Sentences(_) => Ok(SentenceEncoder::ID),
            Self::Server(server) => server::block_on(server.model()).map(|model| model.id),
        }
    }

    /// The vectors of passages in one language. Fails if the embedder no longer has this id.
    pub(super) fn passages(
        &self,
        id: EmbedderId,
        texts: &[String],
        are_croatian: bool,
    ) -> Result<Vec<Vector>, SearchError> {
        let vectors = match self {
            Self::Sentences(encoder) => encoder.passages(texts, are_croatian),
            Self::Server(server) => server::block_on(server.passages(id, texts))?,
        };
        Ok(vectors.iter().map(|numbers| Vector::quantize(numbers)).collect())
    }

    pub fn question(&self, text: &str) -> Result<QuestionVector, SearchError> {
        match self {
            Self::Sentences(encoder) => Ok(encoder.question(text)),
            Self::Server(server) => server::block_on(server.question(text)),
        }
    }
}
