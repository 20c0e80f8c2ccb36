//! The schema of a passage in Tantivy. Any change here or in the creation of passages must increment `VERSION`.

use tantivy::schema::{FAST, Field, IndexRecordOption, STORED, STRING, Schema, TextFieldIndexing, TextOptions};

/// An index of another version is not read.
pub(super) const VERSION: u32 = 5;

pub(super) const VECTOR: &str = "vector";

#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    pub(super) words: Field,
    pub(super) stems: Field,
    /// Possible parts of compounds.
    pub(super) parts: Field,
    /// Absent without an embedder.
    pub(super) vector: Field,
    /// As JSON.
    pub(super) passage: Field,
    pub(super) collection: Field,
    /// The term by which a changed file's passages are deleted.
    pub(super) file: Field,
    /// The collection, only in a file's first passage, to find one passage of each file.
    pub(super) first_of: Field,
    /// The file's record as JSON, only in its first passage.
    pub(super) record: Field,
}

pub(super) fn schema() -> (Schema, Fields) {
    // `terms` separates terms with spaces. There are no phrase queries, so positions are not stored.
    let terms = TextFieldIndexing::default().set_tokenizer("whitespace").set_index_option(IndexRecordOption::WithFreqs);
    let terms = TextOptions::default().set_indexing_options(terms);
    let parts = TextFieldIndexing::default().set_tokenizer("whitespace").set_fieldnorms(false);
    let parts = TextOptions::default().set_indexing_options(parts.set_index_option(IndexRecordOption::Basic));
    let mut schema = Schema::builder();
    let fields = Fields {
        words: schema.add_text_field("words", terms.clone()),
        stems: schema.add_text_field("stems", terms),
        parts: schema.add_text_field("parts", parts),
        vector: schema.add_bytes_field(VECTOR, FAST),
        passage: schema.add_text_field("passage", STORED),
        collection: schema.add_text_field("collection", STRING),
        file: schema.add_text_field("file", STRING),
        first_of: schema.add_text_field("first_of", STRING),
        record: schema.add_text_field("record", STORED),
    };
    (schema.build(), fields)
}
