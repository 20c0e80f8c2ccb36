//! The built-in search index: folders of documents, split into passages, searched by their words in nine languages and, with
//! an `Embedder`, by meaning.
//!
//! One `Indexer` at a time changes it. Any number of `Index` read it meanwhile, in this process or others, and see every
//! commit. A damaged index is an error, never an index without hits. Only this module,
//! `reader`, `writer`, `schema`, `prepare` and `vectors` know Tantivy. The modules that decide the results (`terms`,
//! `split`, the formats in `extract`) are pure.

mod catalogue;
mod compounds;
mod document;
mod embedding;
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
mod vectors;
mod writer;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tantivy::TantivyError;

use catalogue::Catalogue;
pub use catalogue::Collection;
pub use embedding::{
    Embedder, EmbeddingsServer, EmbeddingsUrl, EmbeddingsUrlError, Prefixes, QuestionVector, SentenceEncoder,
    ServedModel,
};
pub use extract::{ChildProgram, serve as serve_extraction};
pub use indexer::{AddOptions, AddReport, Indexer, LockedIndex, Progress};
pub use reader::{FileRank, Hit, Index};

use crate::search::SearchError;

/// Tantivy's list of segments, replaced by every commit.
const META_FILE: &str = "meta.json";

/// Identifies an index and its copies on other machines. Random for a new index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexId(String);

impl IndexId {
    pub fn random() -> Self {
        let (high, low) = (getrandom::u64().unwrap_or_default(), getrandom::u64().unwrap_or_default());
        Self(format!("{high:016x}{low:016x}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for IndexId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for IndexId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// Another process is changing the index.
    #[error("another `index` command is running")]
    Busy,
    #[error("the index was written by another version of this program: delete its folder and add your folders again")]
    OtherVersion,
    /// There was an index, or there must be one.
    #[error(
        "the index is gone: restore it from a backup, make it again with `adriaticum index add`, or give it up with \
         `adriaticum index forget`"
    )]
    Gone,
    /// The index is not the expected one.
    #[error(
        "the index is not the one that this installation had: restore that one from a backup, or accept this one with \
         `adriaticum index forget`"
    )]
    Replaced,
    /// Damaged, or not accessible.
    #[error("the index cannot be read: {0}")]
    Unreadable(String),
    /// For example because the disk is full.
    #[error("the index cannot be written: {0}")]
    Unwritable(String),
    #[error("the passages have no vectors: {0}")]
    Embeddings(#[source] SearchError),
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

/// `None` if there is no index, or nothing was ever committed to it. Never creates one.
fn open(folder: &Path) -> Result<Option<(tantivy::Index, Catalogue)>, IndexError> {
    let exists = folder.join(META_FILE).try_exists().map_err(|error| IndexError::Unreadable(error.to_string()))?;
    if !exists {
        return Ok(None);
    }
    let index = panics::catch_panic(|| tantivy::Index::open_in_dir(folder))?.map_err(IndexError::reading)?;
    if index.schema() != schema::schema().0 {
        return Err(IndexError::OtherVersion);
    }
    let catalogue = catalogue(&index)?;
    Ok(catalogue.map(|catalogue| (index, catalogue)))
}

/// The catalogue of the last commit; `None` if there is none.
fn catalogue(index: &tantivy::Index) -> Result<Option<Catalogue>, IndexError> {
    let metas = index.load_metas().map_err(IndexError::reading)?;
    match metas.payload {
        Some(payload) => Catalogue::parse(&payload).map(Some),
        None if metas.segments.is_empty() => Ok(None),
        None => Err(IndexError::OtherVersion),
    }
}

impl From<panics::Panicked> for IndexError {
    /// Tantivy trusts its files, and panics on damaged ones.
    fn from(_: panics::Panicked) -> Self {
        Self::Unreadable("a file in it is damaged".into())
    }
}
