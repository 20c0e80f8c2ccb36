//! From a file to the passages that are indexed for it. Done on several threads at once; nothing here touches the
//! index.

use std::path::Path;

use tantivy::TantivyDocument;

use super::document::Document;
use super::extract::extract;
use super::files::{Found, Record, digest, read};
use super::language::Language;
use super::schema::Fields;
use super::split::{Piece, split};
use super::terms::{Indexing, Terms};

/// So much more is a word in a title or heading worth than one in the text.
const HEAD: usize = 2;
/// So many bytes of a document are enough to tell its language.
const BEGINNING: usize = 4096;

/// What has become of a file.
pub(super) enum Prepared {
    /// It holds what it held before.
    Unchanged,
    /// There is nothing to index, and why.
    Skipped(String),
    Passages(Record, Vec<TantivyDocument>),
}

/// What the passages of a file have in common.
pub(super) struct Belonging<'a> {
    pub(super) fields: Fields,
    /// The collection's id.
    pub(super) collection: &'a str,
    /// The term that the file's passages are deleted by.
    pub(super) file: String,
    pub(super) url: String,
}

/// Reads a file and makes its passages, unless it holds what `known` says it held.
pub(super) fn prepare(folder: &Path, found: &Found, known: Option<&Record>, belonging: &Belonging<'_>) -> Prepared {
    let bytes = match read(&folder.join(&found.path)) {
        Ok(bytes) => bytes,
        Err(reason) => return Prepared::Skipped(reason),
    };
    let digest = digest(&bytes);
    if known.is_some_and(|known| known.digest == digest) {
        return Prepared::Unchanged;
    }
    let size = bytes.len() as u64;
    let document = match extract(found.format, bytes) {
        Ok(document) => document,
        Err(reason) => return Prepared::Skipped(reason.to_owned()),
    };
    let title = document
        .title
        .clone()
        .unwrap_or_else(|| found.path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned()));
    let pieces = split(&title, &document.blocks);
    let record = Record {
        path: found.path.clone(),
        size,
        // If it grew since it was found, the time belongs to something else.
        modified: found.modified.filter(|_| found.size == size),
        digest,
        passages: pieces.len() as u64,
    };
    let passages = passages(&title, &document, pieces, &record, belonging);
    Prepared::Passages(record, passages)
}

fn passages(
    title: &str,
    document: &Document,
    pieces: Vec<Piece>,
    record: &Record,
    belonging: &Belonging<'_>,
) -> Vec<TantivyDocument> {
    let fields = belonging.fields;
    let mut indexing = Indexing::new(Language::of_document(&document.beginning(BEGINNING)));
    let mut passages = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let mut terms = Terms::default();
        indexing.add(&piece.text, 1, &mut terms);
        indexing.add(title, HEAD, &mut terms);
        indexing.add(&piece.heading, HEAD, &mut terms);
        let mut passage = TantivyDocument::default();
        passage.add_text(fields.words, terms.words);
        passage.add_text(fields.stems, terms.stems);
        passage.add_text(fields.title, title);
        passage.add_text(fields.text, piece.text);
        passage.add_text(fields.url, &belonging.url);
        passage.add_text(fields.collection, belonging.collection);
        passage.add_text(fields.file, &belonging.file);
        if !piece.heading.is_empty() {
            passage.add_text(fields.heading, piece.heading);
        }
        if let Some(date) = document.date {
            passage.add_text(fields.date, date.to_string());
        }
        if passages.is_empty() {
            passage.add_text(fields.first_of, belonging.collection);
            passage.add_text(fields.record, record.format());
        }
        passages.push(passage);
    }
    passages
}
