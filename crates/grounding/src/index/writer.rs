//! Writes to the index. There is one writer at a time, across all processes. If it is killed, the last commit remains.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tantivy::directory::error::LockError;
use tantivy::directory::{Directory, INDEX_WRITER_LOCK, MmapDirectory};
use tantivy::schema::Value;
use tantivy::{DocAddress, DocSet, IndexWriter, ReloadPolicy, TERMINATED, TantivyDocument, TantivyError, Term};

use super::IndexError;
use super::catalogue::Catalogue;
use super::files::FileRecord;
use super::schema::{Fields, schema};

pub(super) use tantivy::directory::DirectoryLock;

/// Uncommitted passages are lost if the process is killed, but each commit takes time and leaves small segments.
pub(super) const COMMIT_INTERVAL: CommitInterval = CommitInterval { passages: 50_000, time: Duration::from_secs(20) };
/// For passages that are not yet on disk.
const BUFFER_BYTES_PER_THREAD: usize = 64 * 1024 * 1024;
/// More threads would create more and smaller segments.
const MAX_THREADS: usize = 4;

/// A commit is due after this number of passages or this time.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommitInterval {
    pub(super) passages: u64,
    pub(super) time: Duration,
}

pub(super) struct Writer {
    index: tantivy::Index,
    writer: IndexWriter,
    pub(super) fields: Fields,
    uncommitted: u64,
    committed: Instant,
}

/// Prevents other processes from writing while the lock is held.
pub(super) fn lock_for_writing(index: &tantivy::Index) -> Result<DirectoryLock, IndexError> {
    index.directory().acquire_lock(&INDEX_WRITER_LOCK).map_err(|error| match error {
        LockError::LockBusy => IndexError::Busy,
        error => IndexError::Unwritable(error.to_string()),
    })
}

impl Writer {
    /// Creates the index if there is none.
    pub(super) fn open(folder: &Path) -> Result<Self, IndexError> {
        let (schema, fields) = schema();
        let index = match super::open(folder)? {
            Some((index, _)) => index,
            None => {
                fs::create_dir_all(folder).map_err(|error| IndexError::Unwritable(error.to_string()))?;
                let directory = MmapDirectory::open(folder).map_err(|error| IndexError::writing(error.into()))?;
                tantivy::Index::open_or_create(directory, schema).map_err(IndexError::writing)?
            }
        };
        let threads = thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS));
        let writer = match index.writer_with_num_threads(threads, threads * BUFFER_BYTES_PER_THREAD) {
            Err(TantivyError::LockFailure(LockError::LockBusy, _)) => return Err(IndexError::Busy),
            writer => writer.map_err(IndexError::writing)?,
        };
        Ok(Self { index, writer, fields, uncommitted: 0, committed: Instant::now() })
    }

    /// The catalogue, which no other process can change while this writer exists. `None` if the index is new.
    pub(super) fn catalogue(&self) -> Result<Option<Catalogue>, IndexError> {
        super::catalogue(&self.index)
    }

    /// The records of a collection's files.
    pub(super) fn records(&self, collection: &str) -> Result<HashMap<PathBuf, FileRecord>, IndexError> {
        self.read_records(collection).map_err(IndexError::reading)
    }

    pub(super) fn delete_file(&mut self, file: &str) {
        self.writer.delete_term(Term::from_field_text(self.fields.file, file));
        self.uncommitted += 1;
    }

    pub(super) fn delete_collection(&mut self, collection: &str) {
        self.writer.delete_term(Term::from_field_text(self.fields.collection, collection));
    }

    pub(super) fn add(&mut self, passages: Vec<TantivyDocument>) -> Result<(), IndexError> {
        self.uncommitted += passages.len() as u64;
        for passage in passages {
            self.writer.add_document(passage).map_err(IndexError::writing)?;
        }
        Ok(())
    }

    pub(super) fn should_commit(&self, interval: CommitInterval) -> bool {
        self.uncommitted >= interval.passages || self.uncommitted > 0 && self.committed.elapsed() >= interval.time
    }

    /// Makes all changes so far visible and durable, together with the catalogue.
    pub(super) fn commit(&mut self, catalogue: &Catalogue) -> Result<(), IndexError> {
        let mut commit = self.writer.prepare_commit().map_err(IndexError::writing)?;
        commit.set_payload(&catalogue.format());
        commit.commit().map_err(IndexError::writing)?;
        (self.uncommitted, self.committed) = (0, Instant::now());
        Ok(())
    }

    /// Waits for merges, so that the next reader finds few segments.
    pub(super) fn close(self) -> Result<(), IndexError> {
        self.writer.wait_merging_threads().map_err(IndexError::writing)
    }

    fn read_records(&self, collection: &str) -> tantivy::Result<HashMap<PathBuf, FileRecord>> {
        let reader = self.index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
        let searcher = reader.searcher();
        let first = Term::from_field_text(self.fields.first_of, collection);
        let mut records = HashMap::new();
        for (ord, segment) in (0..).zip(searcher.segment_readers()) {
            let inverted = segment.inverted_index(self.fields.first_of)?;
            let Some(mut postings) = inverted.read_postings(&first, Default::default())? else { continue };
            while postings.doc() != TERMINATED {
                if !segment.is_deleted(postings.doc()) {
                    let stored: TantivyDocument = searcher.doc(DocAddress::new(ord, postings.doc()))?;
                    let json = stored.get_first(self.fields.record).and_then(|value| value.as_str());
                    let record: FileRecord = serde_json::from_str(json.unwrap_or_default())
                        .map_err(|_| TantivyError::InternalError("the record of a file is damaged".into()))?;
                    records.insert(record.path.clone(), record);
                }
                postings.advance();
            }
        }
        Ok(records)
    }
}
