//! Turns a file into passages, on several threads in parallel. Does not access the index.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tantivy::TantivyDocument;

use super::catalogue::{encode_path, file_term};
use super::document::Document;
use super::embedding::{Embedder, EmbedderId, Vector};
use super::extract::{ChildSession, extract};
use super::files::{DocumentFile, FileRecord, read, sha256_hex};
use super::language::Language;
use super::schema::Fields;
use super::split::{Chunk, split};
use super::terms::{TermExtractor, Terms};
use crate::Passage;
use crate::search::SearchError;

/// Relative to a word in the text.
const HEADING_WEIGHT: usize = 2;

pub(super) enum Prepared {
    Unchanged,
    /// With the reason.
    Skipped(String),
    /// There are no vectors, and there would be none for other files.
    NotEmbedded(SearchError),
    Passages(FileRecord, Vec<TantivyDocument>),
}

/// A folder whose documents are added, with what the index had of it before. Shared by the threads that read them.
pub(super) struct Source {
    pub(super) folder: PathBuf,
    /// The collection's id.
    pub(super) id: String,
    pub(super) url_prefix: Option<String>,
    /// The files that are in the index.
    pub(super) known: HashMap<PathBuf, FileRecord>,
    /// With its id. Without one, passages get no vectors.
    pub(super) embedder: Option<(Embedder, EmbedderId)>,
    pub(super) fields: Fields,
}

impl Source {
    /// A document's URL for citations. Never contains its absolute path on this machine.
    fn url(&self, path: &Path) -> String {
        let path = encode_path(path);
        match &self.url_prefix {
            Some(prefix) => format!("{prefix}{path}"),
            None => {
                let name = self.folder.file_name().unwrap_or_default();
                format!("local:{}/{path}", encode_path(Path::new(name)))
            }
        }
    }

    /// The term by which a file's passages are deleted.
    pub(super) fn file_term(&self, path: &Path) -> String {
        file_term(&self.id, path)
    }

    /// The record of a file. `None` if its URL has changed, because then it is indexed again, even with the same contents.
    fn record(&self, path: &Path) -> Option<&FileRecord> {
        self.known.get(path).filter(|record| record.url == self.url(path))
    }

    /// The suffix of a file's digest: the embedder of its passages.
    fn digest_suffix(&self) -> String {
        self.embedder.as_ref().map_or_else(String::new, |(_, id)| format!("-{id}"))
    }

    /// Decided without reading the file.
    pub(super) fn is_unchanged(&self, file: &DocumentFile) -> bool {
        self.record(&file.path).is_some_and(|record| {
            record.is_current(file) && record.digest.get(SHA256_CHARS..) == Some(&self.digest_suffix())
        })
    }
}

/// Reads a file and creates its passages, unless the index has them.
pub(super) fn prepare(source: &Source, child: Option<&mut ChildSession<'_>>, file: &DocumentFile) -> Prepared {
    let bytes = match read(&source.folder.join(&file.path)) {
        Ok(bytes) => bytes,
        Err(reason) => return Prepared::Skipped(reason),
    };
    let digest = sha256_hex(&bytes) + &source.digest_suffix();
    if source.record(&file.path).is_some_and(|record| record.digest == digest) {
        return Prepared::Unchanged;
    }
    let size = bytes.len() as u64;
    let document = match extract(child, file.format, bytes) {
        Ok(document) => document,
        Err(reason) => return Prepared::Skipped(reason.into_owned()),
    };
    let title = document
        .title
        .clone()
        .unwrap_or_else(|| file.path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned()));
    let title = cut(&title);
    let chunks = split(title, &document.blocks);
    let record = FileRecord {
        path: file.path.clone(),
        url: source.url(&file.path),
        size,
        // If the size has changed since the listing, the time belongs to other contents.
        modified: file.modified.filter(|_| file.size == size),
        digest,
        passages: chunks.len() as u64,
    };
    match passages(title, &document, chunks, &record, source) {
        Ok(passages) => Prepared::Passages(record, passages),
        Err(error) => Prepared::NotEmbedded(error),
    }
}

const SHA256_CHARS: usize = 64;

fn passages(
    title: &str,
    document: &Document,
    chunks: Vec<Chunk>,
    record: &FileRecord,
    source: &Source,
) -> Result<Vec<TantivyDocument>, SearchError> {
    let fields = source.fields;
    let file = source.file_term(&record.path);
    let sample = document.sample(Language::SAMPLE_BYTES);
    let language = Language::detect(&sample);
    let mut extractor = TermExtractor::new(language);
    let mut passages = Vec::with_capacity(chunks.len());
    let are_croatian = Language::is_croatian_document(language, &sample);
    let mut vectors = match &source.embedder {
        Some((embedder, id)) => vectors(embedder, *id, title, &chunks, are_croatian)?.into_iter(),
        None => Vec::new().into_iter(),
    };
    for chunk in chunks {
        let mut terms = Terms::default();
        extractor.add(&chunk.text, 1, &mut terms);
        extractor.add(title, HEADING_WEIGHT, &mut terms);
        extractor.add(&chunk.heading, HEADING_WEIGHT, &mut terms);
        let mut passage = TantivyDocument::default();
        passage.add_text(fields.words, terms.words);
        passage.add_text(fields.stems, terms.stems);
        passage.add_text(fields.parts, terms.parts);
        if let Some(vector) = vectors.next() {
            passage.add_bytes(fields.vector, &vector);
        }
        // Often only the heading contains the topic of a passage.
        let text = match chunk.heading.is_empty() {
            true => chunk.text,
            false => format!("{}\n{}", chunk.heading, chunk.text),
        };
        let stored =
            Passage { title: title.to_owned(), url: record.url.clone(), text, date: document.date, score: None };
        passage.add_text(fields.passage, json(&stored));
        passage.add_text(fields.collection, &source.id);
        passage.add_text(fields.file, &file);
        if passages.is_empty() {
            passage.add_text(fields.first_of, &source.id);
            passage.add_text(fields.record, json(record));
        }
        passages.push(passage);
    }
    Ok(passages)
}

fn json(stored: &impl Serialize) -> String {
    serde_json::to_string(stored).expect("text and numbers are JSON")
}

/// The vectors of passages as bytes. Title and heading are part of a passage's meaning.
fn vectors(
    embedder: &Embedder,
    id: EmbedderId,
    title: &str,
    chunks: &[Chunk],
    are_croatian: bool,
) -> Result<Vec<Vec<u8>>, SearchError> {
    let text = |chunk: &Chunk| format!("{title}. {}. {}", cut(&chunk.heading), chunk.text);
    let mut vectors = Vec::with_capacity(chunks.len());
    for group in chunks.chunks(EMBEDDED_TOGETHER) {
        let made = embedder.passages(id, &group.iter().map(text).collect::<Vec<_>>(), are_croatian)?;
        vectors.extend(made.iter().map(|vector: &Vector| vector.to_bytes(id)));
    }
    Ok(vectors)
}

/// Bounds the memory for the texts of a document, each of which includes its title.
const EMBEDDED_TOGETHER: usize = 64;
/// A longer title or heading is truncated.
const MAX_TITLE_CHARS: usize = 300;

fn cut(title: &str) -> &str {
    title.char_indices().nth(MAX_TITLE_CHARS).map_or(title, |(end, _)| &title[..end])
}
