//! The built-in search index: folders of documents, cut into passages, found by their words in nine languages.
//!
//! `Indexer` changes it, one at a time; any number of `Index` read it beside that, in this process or others, and
//! notice every commit. What is unreadable is an error, never an index without hits. Only `reader`, `writer`, `schema`
//! and `prepare` know Tantivy; everything that decides what is found (`terms`, `split`, `extract`) is pure and knows
//! no index.

mod catalogue;
mod document;
mod extract;
mod files;
mod fold;
mod indexer;
mod language;
mod panics;
mod prepare;
mod reader;
mod schema;
mod split;
mod stem;
mod stopwords;
mod terms;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

use tantivy::TantivyError;

pub use catalogue::Collection;
pub use indexer::{AddOptions, AddReport, Indexer, Progress};
pub use reader::Index;

/// Tantivy's list of segments, replaced by every commit. Where it is, there is an index.
const META: &str = "meta.json";

/// Why the index could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// Somebody else is changing the index.
    #[error("another `index` command is running")]
    Busy,
    /// The index was written by another version of this program.
    #[error("the index was written by another version of this program: delete its folder and add your folders again")]
    OtherVersion,
    /// What is stored cannot be what we stored, or cannot be reached.
    #[error("the index cannot be read: {0}")]
    Unreadable(String),
    /// The index could not be changed, because the disk is full, say.
    #[error("the index cannot be written: {0}")]
    Unwritable(String),
    /// There is no such folder of documents.
    #[error("the folder {} cannot be read: {source}", folder.display())]
    NoSuchFolder {
        /// What was to be indexed.
        folder: PathBuf,
        /// Why it cannot be.
        source: io::Error,
    },
    /// A document would be found twice.
    #[error("{} is indexed already and overlaps with {}: remove it first", indexed.display(), folder.display())]
    Overlaps {
        /// What was to be indexed.
        folder: PathBuf,
        /// What is already.
        indexed: PathBuf,
    },
}

impl IndexError {
    fn reading(error: TantivyError) -> Self {
        match error {
            TantivyError::IncompatibleIndex(_) => Self::OtherVersion,
            error => Self::Unreadable(error.to_string()),
        }
    }

    fn writing(error: TantivyError) -> Self {
        Self::Unwritable(error.to_string())
    }
}

/// Opens what is in the folder, if there is anything. Never creates.
fn open(folder: &Path) -> Result<Option<tantivy::Index>, IndexError> {
    let there = folder.join(META).try_exists().map_err(|error| IndexError::Unreadable(error.to_string()))?;
    if !there {
        return Ok(None);
    }
    let index = panics::catch_panic(|| tantivy::Index::open_in_dir(folder))?.map_err(IndexError::reading)?;
    if index.schema() != schema::schema().0 {
        return Err(IndexError::OtherVersion);
    }
    catalogue(&index)?;
    Ok(Some(index))
}

/// What the last commit says has been indexed.
fn catalogue(index: &tantivy::Index) -> Result<catalogue::Catalogue, IndexError> {
    let metas = index.load_metas().map_err(IndexError::reading)?;
    match metas.payload {
        Some(payload) => catalogue::Catalogue::parse(&payload),
        // Created, and nothing committed yet.
        None if metas.segments.is_empty() => Ok(catalogue::Catalogue::default()),
        None => Err(IndexError::OtherVersion),
    }
}

impl From<panics::Panicked> for IndexError {
    /// Tantivy trusts its own files, and panics where it finds something else in them.
    fn from(_: panics::Panicked) -> Self {
        Self::Unreadable("a file in it is damaged".into())
    }
}
