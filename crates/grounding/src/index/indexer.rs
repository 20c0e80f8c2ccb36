//! Adds folders of documents to the index, updates and removes them.
//!
//! Several threads read and split files; one passes their passages to the writer. Commits contain whole files, so that an
//! interrupted run continues where it stopped.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use jiff::Timestamp;

use super::catalogue::{Catalogue, Collection, collection_id};
use super::embedding::Embedder;
use super::extract::{ChildProgram, ChildSession, STACK_BYTES};
use super::files::{DocumentFile, list_documents};
use super::prepare::{Prepared, Source, prepare};
use super::writer::{COMMIT_INTERVAL, CommitInterval, DirectoryLock, Writer, lock_for_writing};
use super::{IndexError, IndexId, META_FILE};

/// Documents that are read but not yet written. Bounds memory.
const MAX_READ_AHEAD: usize = 16;

/// Changes the index in one folder. Holds nothing open; each change locks the index against other writers while it
/// runs.
#[derive(Clone)]
pub struct Indexer {
    folder: PathBuf,
    commit_interval: CommitInterval,
    child: Option<ChildProgram>,
    embedder: Option<Embedder>,
    /// The id of a new index; random unless given.
    new_id: Option<IndexId>,
}

#[derive(Debug, Clone, Default)]
pub struct AddOptions {
    /// The prefix of its documents' URLs, such as `https://docs.example.com/`. `None` keeps the former prefix; an empty one
    /// resets it to `local:`.
    pub url_prefix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Files processed.
    pub done: usize,
    pub total: usize,
    pub passages: u64,
}

/// Numbers of documents, unless stated otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddReport {
    pub added: u64,
    /// Other contents, or another URL.
    pub changed: u64,
    pub unchanged: u64,
    /// Gone, or no longer readable.
    pub removed: u64,
    /// Files that could not be read, with the reason.
    pub skipped: Vec<(PathBuf, String)>,
    /// Passages of the folder in the index now.
    pub passages: u64,
}

impl Indexer {
    /// The folder of the index, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), commit_interval: COMMIT_INTERVAL, child: None, embedder: None, new_id: None }
    }

    /// Documents are read in processes of this program, which have limits. Without it, they are read in this process.
    pub fn with_child(self, program: ChildProgram) -> Self {
        Self { child: Some(program), ..self }
    }

    /// Sets the embedder of passages. `add` indexes files again whose passages have other vectors, or none.
    pub fn with_embedder(self, embedder: Option<Embedder>) -> Self {
        Self { embedder, ..self }
    }

    /// Sets the id of a new index.
    pub fn with_new_id(self, id: IndexId) -> Self {
        Self { new_id: Some(id), ..self }
    }

    /// `None` if there is no index.
    pub fn id(&self) -> Result<Option<IndexId>, IndexError> {
        Ok(super::open(&self.folder)?.map(|(_, catalogue)| catalogue.id))
    }

    /// Locks the index against changes, so that it can be copied. `None` if there is none.
    pub fn lock(&self) -> Result<Option<LockedIndex>, IndexError> {
        let Some((index, _)) = super::open(&self.folder)? else { return Ok(None) };
        let lock = lock_for_writing(&index)?;
        let unreadable = |error: io::Error| IndexError::Unreadable(error.to_string());
        let entries = fs::read_dir(&self.folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut files: Vec<_> = entries.map_err(unreadable)?.iter().map(fs::DirEntry::path).collect();
        files.retain(|path| path.is_file() && path.extension().is_none_or(|extension| extension != "lock"));
        files.sort();
        Ok(Some(LockedIndex { files, _lock: lock }))
    }

    pub fn list(&self) -> Result<Vec<Collection>, IndexError> {
        Ok(super::open(&self.folder)?.map_or_else(Vec::new, |(_, catalogue)| catalogue.collections))
    }

    /// Adds or updates a folder's documents. Unreadable files are skipped and reported.
    pub fn add(
        &self,
        documents: &Path,
        options: &AddOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<AddReport, IndexError> {
        let folder = real_folder(documents)?;
        let with_id = |embedder: &Embedder| embedder.id().map(|id| (embedder.clone(), id));
        let embedder = self.embedder.as_ref().map(with_id).transpose().map_err(IndexError::Embeddings)?;
        let writer = Writer::open(&self.folder)?;
        let new = || Catalogue::new(self.new_id.clone().unwrap_or_else(IndexId::random));
        let catalogue = writer.catalogue()?.unwrap_or_else(new);
        if let Some(other) = catalogue.collections.iter().find(|other| overlaps(&other.folder, &folder)) {
            return Err(IndexError::Overlaps { folder, indexed: other.folder.clone() });
        }
        let earlier = catalogue.get(&folder);
        let url_prefix = match &options.url_prefix {
            Some(prefix) => Some(prefix.clone()).filter(|prefix| !prefix.is_empty()),
            None => earlier.and_then(|earlier| earlier.url_prefix.clone()),
        };
        let id = collection_id(&folder);
        let known = writer.records(&id)?;
        let collection = Collection {
            folder: folder.clone(),
            url_prefix: url_prefix.clone(),
            indexed_at: Timestamp::now(),
            documents: known.len() as u64,
            passages: known.values().map(|record| record.passages).sum(),
            bytes: known.values().map(|record| record.size).sum(),
        };
        let source = Source { folder, id, url_prefix, known, embedder, fields: writer.fields };
        let report = AddReport::default();
        AddRun { indexer: self, source: &source, writer, catalogue, collection, report }.run(progress)
    }

    /// `None` if the folder is not in the index.
    pub fn remove(&self, documents: &Path) -> Result<Option<Collection>, IndexError> {
        if !self.folder.join(META_FILE).exists() {
            return Ok(None);
        }
        // The folder may no longer exist.
        let folder = fs::canonicalize(documents).or_else(|_| std::path::absolute(documents));
        let folder = folder.map_err(|source| IndexError::NoSuchFolder { folder: documents.to_owned(), source })?;
        let mut writer = Writer::open(&self.folder)?;
        let Some(mut catalogue) = writer.catalogue()? else { return Ok(None) };
        let Some(at) = catalogue.collections.iter().position(|collection| collection.folder == folder) else {
            return Ok(None);
        };
        let removed = catalogue.collections.remove(at);
        writer.delete_collection(&collection_id(&folder));
        writer.commit(&catalogue)?;
        writer.close()?;
        Ok(Some(removed))
    }
}

/// An index that no process can change until this is dropped.
pub struct LockedIndex {
    files: Vec<PathBuf>,
    _lock: DirectoryLock,
}

impl LockedIndex {
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }
}

/// One run of `Indexer::add`.
struct AddRun<'a> {
    indexer: &'a Indexer,
    source: &'a Source,
    writer: Writer,
    catalogue: Catalogue,
    /// Includes uncommitted files.
    collection: Collection,
    report: AddReport,
}

impl AddRun<'_> {
    fn run(mut self, progress: &mut dyn FnMut(Progress)) -> Result<AddReport, IndexError> {
        let (found, unreadable) = list_documents(&self.source.folder);
        self.report.skipped = unreadable;
        self.remove_missing(&found);
        let mut done = 0;
        let mut report_progress = |adding: &Self, more: usize| {
            done += more;
            progress(Progress { done, total: found.len(), passages: adding.collection.passages });
        };
        let (same, read): (Vec<&DocumentFile>, Vec<&DocumentFile>) =
            found.iter().partition(|found| self.source.is_unchanged(found));
        self.report.unchanged = same.len() as u64;
        report_progress(&self, same.len());
        self.read_files(&read, &mut |adding| report_progress(adding, 1))?;
        self.commit()?;
        self.report.passages = self.collection.passages;
        self.writer.close()?;
        Ok(self.report)
    }

    fn remove_missing(&mut self, found: &[DocumentFile]) {
        let present: HashSet<&Path> = found.iter().map(|found| found.path.as_path()).collect();
        for path in self.source.known.keys().filter(|path| !present.contains(path.as_path())) {
            self.forget(path);
            self.report.removed += 1;
        }
    }

    /// Reads files on as many threads as there are cores.
    fn read_files(&mut self, files: &[&DocumentFile], done: &mut dyn FnMut(&Self)) -> Result<(), IndexError> {
        let (source, indexer, next) = (self.source, self.indexer, AtomicUsize::new(0));
        let (sender, prepared) = mpsc::sync_channel(MAX_READ_AHEAD);
        let read = |sender: mpsc::SyncSender<(_, Prepared)>| {
            let mut child = indexer.child.as_ref().map(ChildSession::new);
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                // The receiver is gone if a write has failed.
                if sender.send((&file.path, prepare(source, child.as_mut(), file))).is_err() {
                    break;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                let sender = sender.clone();
                let reader = thread::Builder::new().name("document".into()).stack_size(STACK_BYTES);
                let started = reader.spawn_scoped(scope, || read(sender));
                started.map_err(|error| IndexError::Unwritable(format!("no thread could be started: {error}")))?;
            }
            drop(sender);
            for (path, prepared) in prepared {
                self.apply(path, prepared)?;
                if self.writer.should_commit(indexer.commit_interval) {
                    self.commit()?;
                }
                done(self);
            }
            Ok(())
        })
    }

    fn apply(&mut self, path: &Path, prepared: Prepared) -> Result<(), IndexError> {
        match prepared {
            Prepared::Unchanged => self.report.unchanged += 1,
            Prepared::Skipped(reason) => {
                self.report.skipped.push((self.source.folder.join(path), reason));
                self.report.removed += u64::from(self.forget(path));
            }
            Prepared::NotEmbedded(error) => {
                self.commit()?; // a later run continues from here
                return Err(IndexError::Embeddings(error));
            }
            Prepared::Passages(record, passages) => {
                match self.forget(path) {
                    true => self.report.changed += 1,
                    false => self.report.added += 1,
                }
                self.collection.documents += 1;
                self.collection.passages += record.passages;
                self.collection.bytes += record.size;
                self.writer.add(passages)?;
            }
        }
        Ok(())
    }

    /// Deletes a file's passages, at most once in a run. Returns false if there were none.
    fn forget(&mut self, path: &Path) -> bool {
        let Some(record) = self.source.known.get(path) else { return false };
        self.writer.delete_file(&self.source.file_term(path));
        self.collection.documents -= 1;
        self.collection.passages -= record.passages;
        self.collection.bytes -= record.size;
        true
    }

    fn commit(&mut self) -> Result<(), IndexError> {
        self.collection.indexed_at = Timestamp::now();
        self.catalogue.set(self.collection.clone());
        self.writer.commit(&self.catalogue)
    }
}

fn real_folder(documents: &Path) -> Result<PathBuf, IndexError> {
    let no_such_folder = |source| IndexError::NoSuchFolder { folder: documents.to_owned(), source };
    let folder = fs::canonicalize(documents).map_err(no_such_folder)?;
    // Fails for an unreadable folder: its documents must not count as deleted.
    fs::read_dir(&folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => no_such_folder(io::Error::other("it is not a folder")),
        _ => no_such_folder(error),
    })?;
    Ok(folder)
}

fn overlaps(one: &Path, other: &Path) -> bool {
    one != other && (one.starts_with(other) || other.starts_with(one))
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::time::Duration;

    use super::*;
    use crate::index::panics::catch_panic;

    #[test]
    fn an_interrupted_run_continues() -> Result<(), Box<dyn Error>> {
        let root = tempfile::tempdir()?;
        let documents = root.path().join("documents");
        fs::create_dir(&documents)?;
        for n in 0..50 {
            fs::write(documents.join(format!("{n}.txt")), "The anchor is heavy.")?;
        }
        let interval = CommitInterval { passages: 7, time: Duration::MAX };
        let indexer = Indexer { commit_interval: interval, ..Indexer::new(root.path().join("index")) };
        let interrupt = &mut |progress: Progress| assert!(progress.done < 30);
        assert!(catch_panic(|| indexer.add(&documents, &AddOptions::default(), interrupt)).is_err());

        // Four commits of seven passages, as in the list.
        let listed = indexer.list()?;
        assert_eq!(listed.iter().map(|collection| collection.passages).collect::<Vec<_>>(), [28]);
        let report = indexer.add(&documents, &AddOptions::default(), &mut |_| ())?;
        assert_eq!((report.unchanged, report.added, report.passages), (28, 22, 50));
        assert_eq!(indexer.list()?[0].documents, 50);
        Ok(())
    }
}
