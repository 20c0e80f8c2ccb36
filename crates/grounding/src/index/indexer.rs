//! Adding folders of documents to the index, bringing them up to date, and taking them out again.
//!
//! Files are read and cut by several threads; one hands their passages to the writer. What is committed is always
//! whole files, so a run that was interrupted carries on where it was.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use jiff::Timestamp;

use super::IndexError;
use super::catalogue::{Catalogue, Collection, encode_path};
use super::files::{Found, Record, digest, walk};
use super::prepare::{Belonging, Prepared, prepare};
use super::writer::{COMMIT_EVERY, Every, Writer};

/// Documents that are read and not written yet, so that memory has a bound.
const READ_AHEAD: usize = 16;

/// The index in one folder, for changing it. Holds nothing open; every change takes the index for itself as long as it
/// runs, beside any number of readers.
#[derive(Debug, Clone)]
pub struct Indexer {
    folder: PathBuf,
    commit_every: Every,
}

/// How a folder is added.
#[derive(Debug, Clone, Default)]
pub struct AddOptions {
    /// What its documents' addresses begin with, such as `https://docs.example.com/`. `None` keeps what was said when
    /// the folder was added before; an empty one goes back to `local:`.
    pub url_prefix: Option<String>,
}

/// How far adding has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Files looked at.
    pub done: usize,
    /// Files found.
    pub total: usize,
    /// Passages made so far.
    pub passages: u64,
}

/// What adding a folder has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddReport {
    /// Documents that are new.
    pub added: u64,
    /// Documents that were indexed before and now say something else, or are found under another address.
    pub changed: u64,
    /// Documents that are as they were.
    pub unchanged: u64,
    /// Documents that were indexed and are gone, or can no longer be read.
    pub removed: u64,
    /// What could not be read, and why.
    pub skipped: Vec<(PathBuf, String)>,
    /// Passages of the folder that are in the index now.
    pub passages: u64,
}

impl Indexer {
    /// The index in that folder, whether there is one yet or not.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), commit_every: COMMIT_EVERY }
    }

    /// What has been indexed.
    pub fn list(&self) -> Result<Vec<Collection>, IndexError> {
        match super::open(&self.folder)? {
            Some(index) => Ok(super::catalogue(&index)?.collections),
            None => Ok(Vec::new()),
        }
    }

    /// Indexes a folder's documents, or brings them up to date. What cannot be read is skipped and reported.
    pub fn add(
        &self,
        documents: &Path,
        options: &AddOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<AddReport, IndexError> {
        let folder = real_folder(documents)?;
        let writer = Writer::open(&self.folder)?;
        let catalogue = writer.catalogue()?;
        if let Some(other) = catalogue.collections.iter().find(|other| overlaps(&other.folder, &folder)) {
            return Err(IndexError::Overlaps { folder, indexed: other.folder.clone() });
        }
        let earlier = catalogue.get(&folder);
        let url_prefix = match &options.url_prefix {
            Some(prefix) => Some(prefix.clone()).filter(|prefix| !prefix.is_empty()),
            None => earlier.and_then(|earlier| earlier.url_prefix.clone()),
        };
        let id = id(&folder);
        let known = writer.records(&id)?;
        let collection = Collection {
            url_prefix,
            indexed_at: Timestamp::now(),
            documents: known.len() as u64,
            passages: known.values().map(|(record, _)| record.passages).sum(),
            bytes: known.values().map(|(record, _)| record.size).sum(),
            folder,
        };
        let commit_every = self.commit_every;
        Adding { writer, catalogue, collection, id, known, commit_every, report: AddReport::default() }.run(progress)
    }

    /// Takes a folder's documents out of the index. `None` if they are not in it.
    pub fn remove(&self, documents: &Path) -> Result<Option<Collection>, IndexError> {
        if super::open(&self.folder)?.is_none() {
            return Ok(None);
        }
        // The folder itself may be gone by now.
        let folder = fs::canonicalize(documents).or_else(|_| std::path::absolute(documents));
        let folder = folder.map_err(|source| IndexError::NoSuchFolder { folder: documents.to_owned(), source })?;
        let mut writer = Writer::open(&self.folder)?;
        let mut catalogue = writer.catalogue()?;
        let Some(at) = catalogue.collections.iter().position(|collection| collection.folder == folder) else {
            return Ok(None);
        };
        let removed = catalogue.collections.remove(at);
        writer.delete_collection(&id(&folder));
        writer.commit(&catalogue)?;
        writer.close()?;
        Ok(Some(removed))
    }
}

/// One folder being added.
struct Adding {
    writer: Writer,
    catalogue: Catalogue,
    /// As it is in the index at the moment, what is not committed included.
    collection: Collection,
    id: String,
    /// What was indexed before this run.
    known: HashMap<PathBuf, (Record, String)>,
    commit_every: Every,
    report: AddReport,
}

impl Adding {
    fn run(mut self, progress: &mut dyn FnMut(Progress)) -> Result<AddReport, IndexError> {
        let (found, unreadable) = walk(&self.collection.folder);
        self.report.skipped = unreadable;
        self.remove_what_is_gone(&found);
        let mut done = 0;
        let mut tell = |adding: &Self, more: usize| {
            done += more;
            progress(Progress { done, total: found.len(), passages: adding.collection.passages });
        };
        let (same, read): (Vec<&Found>, Vec<&Found>) = found.iter().partition(|found| self.is_unchanged(found));
        self.report.unchanged = same.len() as u64;
        tell(&self, same.len());
        self.read_files(&read, &mut |adding| tell(adding, 1))?;
        self.commit()?;
        self.report.passages = self.collection.passages;
        self.writer.close()?;
        Ok(self.report)
    }

    fn remove_what_is_gone(&mut self, found: &[Found]) {
        let there: HashSet<&Path> = found.iter().map(|found| found.path.as_path()).collect();
        let gone: Vec<PathBuf> = self.known.keys().filter(|path| !there.contains(path.as_path())).cloned().collect();
        for path in gone {
            self.forget(&path);
            self.report.removed += 1;
        }
    }

    /// Can that be said without reading the file?
    fn is_unchanged(&self, found: &Found) -> bool {
        self.known.get(&found.path).is_some_and(|(record, url)| record.is_of(found) && *url == self.url(&found.path))
    }

    /// Reads files on as many threads as there are cores, and takes what comes.
    fn read_files(&mut self, files: &[&Found], done: &mut dyn FnMut(&Self)) -> Result<(), IndexError> {
        // A file whose address changes is made anew, even though it holds the same.
        let known: Vec<Option<Record>> = files
            .iter()
            .map(|found| self.known.get(&found.path).filter(|(_, url)| *url == self.url(&found.path)))
            .map(|known| known.map(|(record, _)| record.clone()))
            .collect();
        let belonging = |found: &Found| (self.file(&found.path), self.url(&found.path));
        let terms: Vec<(String, String)> = files.iter().map(|found| belonging(found)).collect();
        let (folder, id, fields) = (self.collection.folder.clone(), self.id.clone(), self.writer.fields);
        let next = AtomicUsize::new(0);
        let (sender, prepared) = mpsc::sync_channel(READ_AHEAD);
        let read = |sender: mpsc::SyncSender<(usize, Prepared)>| {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(found) = files.get(at) else { break };
                let (file, url) = terms[at].clone();
                let belonging = Belonging { fields, collection: &id, file, url };
                // Nobody takes it any more if writing has failed.
                if sender.send((at, prepare(&folder, found, known[at].as_ref(), &belonging))).is_err() {
                    break;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                let sender = sender.clone();
                scope.spawn(|| read(sender));
            }
            drop(sender);
            for (at, prepared) in prepared {
                self.take(&files[at].path, prepared)?;
                if self.writer.should_commit(self.commit_every) {
                    self.commit()?;
                }
                done(self);
            }
            Ok(())
        })
    }

    fn take(&mut self, path: &Path, prepared: Prepared) -> Result<(), IndexError> {
        match prepared {
            Prepared::Unchanged => self.report.unchanged += 1,
            Prepared::Skipped(reason) => {
                self.report.skipped.push((self.collection.folder.join(path), reason));
                self.report.removed += u64::from(self.forget(path));
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

    /// Deletes what is indexed of a file. Was there anything?
    fn forget(&mut self, path: &Path) -> bool {
        let Some((record, _)) = self.known.remove(path) else { return false };
        let file = self.file(path);
        self.writer.delete_file(&file);
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

    fn file(&self, path: &Path) -> String {
        format!("{}/{}", self.id, encode_path(path))
    }

    /// Where a document is, for those who read an answer. Never says where it is on this machine.
    fn url(&self, path: &Path) -> String {
        let path = encode_path(path);
        match &self.collection.url_prefix {
            Some(prefix) => format!("{prefix}{path}"),
            None => {
                let name = self.collection.folder.file_name().unwrap_or_default();
                format!("local:{}/{path}", encode_path(Path::new(name)))
            }
        }
    }
}

fn real_folder(documents: &Path) -> Result<PathBuf, IndexError> {
    let no_such_folder = |source| IndexError::NoSuchFolder { folder: documents.to_owned(), source };
    let folder = fs::canonicalize(documents).map_err(no_such_folder)?;
    // Also says whether it may be read: what it held must not be taken for gone.
    fs::read_dir(&folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => no_such_folder(io::Error::other("it is not a folder")),
        _ => no_such_folder(error),
    })?;
    Ok(folder)
}

fn overlaps(one: &Path, other: &Path) -> bool {
    one != other && (one.starts_with(other) || other.starts_with(one))
}

/// A short name for a folder, as a term.
fn id(folder: &Path) -> String {
    digest(folder.as_os_str().as_encoded_bytes())[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::time::Duration;

    use super::*;
    use crate::index::panics::catch_panic;

    #[test]
    fn a_run_that_was_interrupted_carries_on() -> Result<(), Box<dyn Error>> {
        let root = tempfile::tempdir()?;
        let documents = root.path().join("documents");
        fs::create_dir(&documents)?;
        for n in 0..50 {
            fs::write(documents.join(format!("{n}.txt")), "The anchor is heavy.")?;
        }
        let every = Every { passages: 7, time: Duration::MAX };
        let indexer = Indexer { folder: root.path().join("index"), commit_every: every };
        let interrupt = &mut |progress: Progress| assert!(progress.done < 30);
        assert!(catch_panic(|| indexer.add(&documents, &AddOptions::default(), interrupt)).is_err());

        // Four times seven are committed, and the list says so.
        let listed = indexer.list()?;
        assert_eq!(listed.iter().map(|collection| collection.passages).collect::<Vec<_>>(), [28]);
        let report = indexer.add(&documents, &AddOptions::default(), &mut |_| ())?;
        assert_eq!((report.unchanged, report.added, report.passages), (28, 22, 50));
        assert_eq!(indexer.list()?[0].documents, 50);
        Ok(())
    }
}
