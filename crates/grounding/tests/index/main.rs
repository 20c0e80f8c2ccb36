//! The index through its public interface: folders of documents are added, questions find passages.

mod adding;
mod damage;
mod finding;
mod pdf;
mod together;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use grounding::Passage;
use grounding::index::{AddOptions, AddReport, Index, IndexError, Indexer};
use tempfile::TempDir;

type TestResult = Result<(), Box<dyn Error>>;
type Change = fn(&Path) -> std::io::Result<()>;

/// A folder of documents and an index.
pub(crate) struct Fixture {
    pub(crate) root: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> std::io::Result<Self> {
        let root = tempfile::tempdir()?;
        fs::create_dir(root.path().join("papers"))?;
        Ok(Self { root })
    }

    pub(crate) fn documents(&self) -> PathBuf {
        self.root.path().join("papers")
    }

    pub(crate) fn index_folder(&self) -> PathBuf {
        self.root.path().join("data/index")
    }

    pub(crate) fn indexer(&self) -> Indexer {
        Indexer::new(self.index_folder())
    }

    pub(crate) fn write(&self, path: &str, contents: impl AsRef<[u8]>) -> std::io::Result<()> {
        let path = self.documents().join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, contents)
    }

    pub(crate) fn add(&self) -> Result<AddReport, IndexError> {
        self.indexer().add(&self.documents(), &AddOptions::default(), &mut |_| ())
    }

    pub(crate) fn add_with_prefix(&self, prefix: &str) -> Result<AddReport, IndexError> {
        let options = AddOptions { url_prefix: Some(prefix.to_owned()) };
        self.indexer().add(&self.documents(), &options, &mut |_| ())
    }

    pub(crate) fn index(&self) -> Result<Index, Box<dyn Error>> {
        Ok(Index::open(&self.index_folder())?.ok_or("nothing was indexed")?)
    }

    pub(crate) fn ask(&self, question: &str) -> Result<Vec<Passage>, Box<dyn Error>> {
        Ok(self.index()?.search(question, None, 5)?.into_iter().map(|hit| hit.passage).collect())
    }

    pub(crate) fn found_urls(&self, question: &str) -> Result<Vec<String>, Box<dyn Error>> {
        Ok(self.ask(question)?.into_iter().map(|passage| passage.url).collect())
    }

    /// Adds the folder. Returns the numbers of added, changed, unchanged, removed and skipped documents.
    pub(crate) fn add_counts(&self) -> Result<[u64; 5], IndexError> {
        let report = self.add()?;
        Ok([report.added, report.changed, report.unchanged, report.removed, report.skipped.len() as u64])
    }
}
