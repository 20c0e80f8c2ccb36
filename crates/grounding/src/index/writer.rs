//! The one who changes the index. Only one can exist at a time, in whatever process; killing it leaves the last commit.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tantivy::directory::MmapDirectory;
use tantivy::directory::error::LockError;
use tantivy::schema::Value;
use tantivy::{DocAddress, DocSet, IndexWriter, ReloadPolicy, TERMINATED, TantivyDocument, TantivyError, Term};

use super::IndexError;
use super::catalogue::Catalogue;
use super::files::Record;
use super::schema::{Fields, schema};

/// What is written since the last commit is lost when the process dies. A commit takes a moment and leaves small
/// segments.
pub(super) const COMMIT_EVERY: Every = Every { passages: 50_000, time: Duration::from_secs(20) };
/// Memory for passages that are not on disk yet, for each thread.
const MEMORY: usize = 64 * 1024 * 1024;
/// More threads would make more, smaller segments.
const MOST_THREADS: usize = 4;

/// Whichever comes first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Every {
    pub(super) passages: u64,
    pub(super) time: Duration,
}

/// Writes to the index, commits now and then.
pub(super) struct Writer {
    index: tantivy::Index,
    writer: IndexWriter,
    pub(super) fields: Fields,
    uncommitted: u64,
    committed: Instant,
}

impl Writer {
    /// Opens the index in that folder for writing, made as needed.
    pub(super) fn open(folder: &Path) -> Result<Self, IndexError> {
        let (schema, fields) = schema();
        let index = match super::open(folder)? {
            Some(index) => index,
            None => {
                fs::create_dir_all(folder).map_err(|error| IndexError::Unwritable(error.to_string()))?;
                let directory = MmapDirectory::open(folder).map_err(|error| IndexError::writing(error.into()))?;
                tantivy::Index::open_or_create(directory, schema).map_err(IndexError::writing)?
            }
        };
        let threads = thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS));
        let writer = match index.writer_with_num_threads(threads, threads * MEMORY) {
            Err(TantivyError::LockFailure(LockError::LockBusy, _)) => return Err(IndexError::Busy),
            writer => writer.map_err(IndexError::writing)?,
        };
        Ok(Self { index, writer, fields, uncommitted: 0, committed: Instant::now() })
    }

    /// What has been indexed. Nobody else can change it while this writer lives.
    pub(super) fn catalogue(&self) -> Result<Catalogue, IndexError> {
        super::catalogue(&self.index)
    }

    /// What is remembered of a collection's files, with the address that each is found under.
    pub(super) fn records(&self, collection: &str) -> Result<HashMap<PathBuf, (Record, String)>, IndexError> {
        self.read_records(collection).map_err(IndexError::reading)
    }

    /// Deletes the passages of a file.
    pub(super) fn delete_file(&mut self, file: &str) {
        self.writer.delete_term(Term::from_field_text(self.fields.file, file));
        self.uncommitted += 1;
    }

    /// Deletes the passages of a collection.
    pub(super) fn delete_collection(&mut self, collection: &str) {
        self.writer.delete_term(Term::from_field_text(self.fields.collection, collection));
    }

    /// Adds passages of one file.
    pub(super) fn add(&mut self, passages: Vec<TantivyDocument>) -> Result<(), IndexError> {
        self.uncommitted += passages.len() as u64;
        for passage in passages {
            self.writer.add_document(passage).map_err(IndexError::writing)?;
        }
        Ok(())
    }

    /// Is so much unwritten that it would be a pity to lose?
    pub(super) fn should_commit(&self, every: Every) -> bool {
        self.uncommitted >= every.passages || self.uncommitted > 0 && self.committed.elapsed() >= every.time
    }

    /// Makes everything so far visible and durable, together with what the catalogue says about it.
    pub(super) fn commit(&mut self, catalogue: &Catalogue) -> Result<(), IndexError> {
        let mut commit = self.writer.prepare_commit().map_err(IndexError::writing)?;
        commit.set_payload(&catalogue.format());
        commit.commit().map_err(IndexError::writing)?;
        (self.uncommitted, self.committed) = (0, Instant::now());
        Ok(())
    }

    /// Waits for segments that are being merged, so that whoever comes next finds few.
    pub(super) fn close(self) -> Result<(), IndexError> {
        self.writer.wait_merging_threads().map_err(IndexError::writing)
    }

    fn read_records(&self, collection: &str) -> tantivy::Result<HashMap<PathBuf, (Record, String)>> {
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
                    let text = |field| stored.get_first(field).and_then(|value| value.as_str()).unwrap_or_default();
                    let record = Record::parse(text(self.fields.record))
                        .ok_or_else(|| TantivyError::InternalError("what it remembers of a file".into()))?;
                    records.insert(record.path.clone(), (record, text(self.fields.url).to_owned()));
                }
                postings.advance();
            }
        }
        Ok(records)
    }
}
