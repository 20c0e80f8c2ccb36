//! Turns a file into passages, on several threads in parallel. Does not access the index.

use std::path::Path;

use tantivy::TantivyDocument;

use super::document::Document;
use super::embedding::{Embedder, EmbedderId, Vector};
use super::extract::{ChildSession, extract};
use super::files::{DocumentFile, FileRecord, read, sha256_hex};
use super::language::Language;
use super::schema::Fields;
use super::split::{Chunk, split};
use super::terms::{TermExtractor, Terms};
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

/// The common properties of a file's passages.
pub(super) struct PassageOrigin<'a> {
    pub(super) fields: Fields,
    /// The collection's id.
    pub(super) collection: &'a str,
    /// The term by which the file's passages are deleted.
    pub(super) file: String,
    pub(super) url: String,
    /// With its id. Without one, passages get no vectors.
    pub(super) embedder: Option<(&'a Embedder, EmbedderId)>,
}

/// Reads a file and creates its passages, unless its contents equal those of `known`.
pub(super) fn prepare(
    child: Option<&mut ChildSession<'_>>,
    folder: &Path,
    file: &DocumentFile,
    known: Option<&FileRecord>,
    origin: &PassageOrigin<'_>,
) -> Prepared {
    let bytes = match read(&folder.join(&file.path)) {
        Ok(bytes) => bytes,
        Err(reason) => return Prepared::Skipped(reason),
    };
    let digest = sha256_hex(&bytes) + &suffix(origin.embedder.map(|(_, id)| id));
    if known.is_some_and(|known| known.digest == digest) {
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
        size,
        // If the size has changed since the listing, the time belongs to other contents.
        modified: file.modified.filter(|_| file.size == size),
        digest,
        passages: chunks.len() as u64,
    };
    match passages(title, &document, chunks, &record, origin) {
        Ok(passages) => Prepared::Passages(record, passages),
        Err(error) => Prepared::NotEmbedded(error),
    }
}

/// Whether passages with this digest have the vectors of this embedder.
pub(super) fn has_vectors_of(digest: &str, embedder: Option<EmbedderId>) -> bool {
    digest.get(SHA256_CHARS..) == Some(&suffix(embedder))
}

const SHA256_CHARS: usize = 64;

/// The suffix of a file's digest: the embedder of its passages.
fn suffix(embedder: Option<EmbedderId>) -> String {
    embedder.map_or_else(String::new, |id| format!("-{id}"))
}

fn passages(
    title: &str,
    document: &Document,
    chunks: Vec<Chunk>,
    record: &FileRecord,
    origin: &PassageOrigin<'_>,
) -> Result<Vec<TantivyDocument>, SearchError> {
    let fields = origin.fields;
    let sample = document.sample(Language::SAMPLE_BYTES);
    let language = Language::detect(&sample);
    let mut extractor = TermExtractor::new(language);
    let mut passages = Vec::with_capacity(chunks.len());
    let are_croatian = Language::is_croatian_document(language, &sample);
    let mut vectors = match origin.embedder {
        Some((embedder, id)) => vectors(embedder, id, title, &chunks, are_croatian)?.into_iter(),
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
        passage.add_text(fields.title, title);
        passage.add_text(fields.text, chunk.text);
        passage.add_text(fields.url, &origin.url);
        passage.add_text(fields.collection, origin.collection);
        passage.add_text(fields.file, &origin.file);
        if !chunk.heading.is_empty() {
            passage.add_text(fields.heading, chunk.heading);
        }
        if let Some(date) = document.date {
            passage.add_text(fields.date, date.to_string());
        }
        if passages.is_empty() {
            passage.add_text(fields.first_of, origin.collection);
            passage.add_text(fields.record, serde_json::to_string(record).expect("text and numbers are JSON"));
        }
        passages.push(passage);
    }
    Ok(passages)
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
