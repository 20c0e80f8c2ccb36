//! From a file to its passages, on several threads at once. Nothing here touches the index.

use std::path::Path;

use tantivy::TantivyDocument;

use super::document::Document;
use super::embedding::{EMBEDDER, Embedder, Vector};
use super::extract::Session;
use super::files::{DocumentFile, FileRecord, read, sha256_hex};
use super::language::Language;
use super::schema::Fields;
use super::split::{Chunk, split};
use super::terms::{TermExtractor, Terms};

/// Relative to a word in the text.
const HEADING_WEIGHT: usize = 2;

pub(super) enum Prepared {
    Unchanged,
    /// With the reason.
    Skipped(String),
    Passages(FileRecord, Vec<TantivyDocument>),
}

/// What all passages of a file have in common.
pub(super) struct PassageOrigin<'a> {
    pub(super) fields: Fields,
    /// The collection's id.
    pub(super) collection: &'a str,
    /// The term by which the file's passages are deleted.
    pub(super) file: String,
    pub(super) url: String,
    /// Without one, passages get no vectors.
    pub(super) embedder: Option<&'a Embedder>,
}

/// Reads a file and makes its passages, unless its contents are those of `known`.
pub(super) fn prepare(
    session: &mut Session<'_>,
    folder: &Path,
    file: &DocumentFile,
    known: Option<&FileRecord>,
    origin: &PassageOrigin<'_>,
) -> Prepared {
    let bytes = match read(&folder.join(&file.path)) {
        Ok(bytes) => bytes,
        Err(reason) => return Prepared::Skipped(reason),
    };
    let digest = contents_digest(&bytes, origin.embedder);
    if known.is_some_and(|known| known.digest == digest) {
        return Prepared::Unchanged;
    }
    let size = bytes.len() as u64;
    let document = match session.extract(file.format, bytes) {
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
        // If it grew since it was listed, the time belongs to other contents.
        modified: file.modified.filter(|_| file.size == size),
        digest,
        passages: chunks.len() as u64,
    };
    let passages = passages(title, &document, chunks, &record, origin);
    Prepared::Passages(record, passages)
}

/// Of what the passages depend on: the file's contents, and what made their vectors.
fn contents_digest(bytes: &[u8], embedder: Option<&Embedder>) -> String {
    sha256_hex(bytes) + &suffix(embedder)
}

/// Whether passages with that digest have the vectors that this embedder would make.
pub(super) fn has_vectors_of(digest: &str, embedder: Option<&Embedder>) -> bool {
    digest.get(SHA256_CHARS..) == Some(&suffix(embedder))
}

const SHA256_CHARS: usize = 64;

fn suffix(embedder: Option<&Embedder>) -> String {
    embedder.map_or_else(String::new, |_| format!("-{EMBEDDER}"))
}

fn passages(
    title: &str,
    document: &Document,
    chunks: Vec<Chunk>,
    record: &FileRecord,
    origin: &PassageOrigin<'_>,
) -> Vec<TantivyDocument> {
    let fields = origin.fields;
    let sample = document.sample(Language::SAMPLE_BYTES);
    let language = Language::detect(&sample);
    let mut extractor = TermExtractor::new(language);
    let mut passages = Vec::with_capacity(chunks.len());
    let are_croatian = Language::is_croatian_document(language, &sample);
    let vectors = origin.embedder.map(|embedder| vectors(embedder, title, &chunks, are_croatian));
    let mut vectors = vectors.unwrap_or_default().into_iter();
    for chunk in chunks {
        let mut terms = Terms::default();
        extractor.add(&chunk.text, 1, &mut terms);
        extractor.add(title, HEADING_WEIGHT, &mut terms);
        extractor.add(&chunk.heading, HEADING_WEIGHT, &mut terms);
        let mut passage = TantivyDocument::default();
        passage.add_text(fields.words, terms.words);
        passage.add_text(fields.stems, terms.stems);
        if let Some(vector) = vectors.next() {
            passage.add_bytes(fields.vector, &vector.to_bytes());
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
            passage.add_text(fields.record, record.format());
        }
        passages.push(passage);
    }
    passages
}

/// A passage means what its title and heading say, too.
fn vectors(embedder: &Embedder, title: &str, chunks: &[Chunk], are_croatian: bool) -> Vec<Vector> {
    let text = |chunk: &Chunk| format!("{title}. {}. {}", cut(&chunk.heading), chunk.text);
    let groups = chunks.chunks(EMBEDDED_TOGETHER);
    groups.flat_map(|group| embedder.passages(&group.iter().map(text).collect::<Vec<_>>(), are_croatian)).collect()
}

/// Bounds the memory that the texts of a document take, which all have its title.
const EMBEDDED_TOGETHER: usize = 64;
/// A longer title or heading is cut.
const MAX_TITLE_CHARS: usize = 300;

fn cut(title: &str) -> &str {
    title.char_indices().nth(MAX_TITLE_CHARS).map_or(title, |(end, _)| &title[..end])
}
