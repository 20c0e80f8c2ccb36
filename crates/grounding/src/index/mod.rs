//! The built-in search index: folders of documents, split into passages, searched by their words in nine languages.
//!
//! One `Indexer` at a time changes it. Any number of `Index` read it meanwhile, in this process or others, and notice
//! every commit. A damaged index is an error, never an index without hits. Only `reader`, `writer`, `schema` and
//! `prepare` know Tantivy; what decides the results (`terms`, `split`, the formats in `extract`) is pure.

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
pub use extract::{ChildProgram, Extractor, serve as serve_extraction};
pub use indexer::{AddOptions, AddReport, Indexer, Progress};
pub use reader::Index;

/// Tantivy's list of segments, replaced by every commit. An index exists where this file does.
const META_FILE: &str = "meta.json";

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// Another process is changing the index.
    #[error("another `index` command is running")]
    Busy,
    #[error("the index was written by another version of this program: delete its folder and add your folders again")]
    OtherVersion,
    /// Damaged, or not accessible.
    #[error("the index cannot be read: {0}")]
    Unreadable(String),
    /// For example because the disk is full.
    #[error("the index cannot be written: {0}")]
    Unwritable(String),
    #[error("the folder {} cannot be read: {source}", folder.display())]
    NoSuchFolder { folder: PathBuf, source: io::Error },
    /// Documents would be found twice.
    #[error("{} is indexed already and overlaps with {}: remove it first", indexed.display(), folder.display())]
    Overlaps { folder: PathBuf, indexed: PathBuf },
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

/// `None` if there is no index. Never creates one.
fn open(folder: &Path) -> Result<Option<tantivy::Index>, IndexError> {
    let exists = folder.join(META_FILE).try_exists().map_err(|error| IndexError::Unreadable(error.to_string()))?;
    if !exists {
        return Ok(None);
    }
    let index = panics::catch_panic(|| tantivy::Index::open_in_dir(folder))?.map_err(IndexError::reading)?;
    if index.schema() != schema::schema().0 {
        return Err(IndexError::OtherVersion);
    }
    catalogue(&index)?;
    Ok(Some(index))
}

/// Of the last commit.
fn catalogue(index: &tantivy::Index) -> Result<catalogue::Catalogue, IndexError> {
    let metas = index.load_metas().map_err(IndexError::reading)?;
    match metas.payload {
        Some(payload) => catalogue::Catalogue::parse(&payload),
        // Nothing committed yet.
        None if metas.segments.is_empty() => Ok(catalogue::Catalogue::default()),
        None => Err(IndexError::OtherVersion),
    }
}

impl From<panics::Panicked> for IndexError {
    /// Tantivy trusts its own files and panics on damaged ones.
    fn from(_: panics::Panicked) -> Self {
        Self::Unreadable("a file in it is damaged".into())
    }
}
