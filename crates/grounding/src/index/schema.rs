//! What Tantivy stores of a passage. Whatever changes here or in what passages are made of changes `VERSION`.

use tantivy::schema::{Field, IndexRecordOption, STORED, STRING, Schema, TextFieldIndexing, TextOptions};

/// The version of what is in the index. One that was written by another is not read.
pub(super) const VERSION: u32 = 1;

/// A passage's fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    /// Terms as they stand.
    pub(super) words: Field,
    /// Terms by their stems.
    pub(super) stems: Field,
    pub(super) title: Field,
    pub(super) heading: Field,
    pub(super) text: Field,
    pub(super) url: Field,
    pub(super) date: Field,
    /// The collection that a passage belongs to.
    pub(super) collection: Field,
    /// The file that a passage is from: what to delete when it changes.
    pub(super) file: Field,
    /// Only with a file's first passage: the collection, to find these by.
    pub(super) first_of: Field,
    /// Only with a file's first passage: what is known of the file.
    pub(super) record: Field,
}

/// The schema and its fields.
pub(super) fn schema() -> (Schema, Fields) {
    // Terms are made here, not there; phrases are not looked for, so nobody needs positions.
    let terms = TextFieldIndexing::default().set_tokenizer("whitespace").set_index_option(IndexRecordOption::WithFreqs);
    let terms = TextOptions::default().set_indexing_options(terms);
    let mut schema = Schema::builder();
    let fields = Fields {
        words: schema.add_text_field("words", terms.clone()),
        stems: schema.add_text_field("stems", terms),
        title: schema.add_text_field("title", STORED),
        heading: schema.add_text_field("heading", STORED),
        text: schema.add_text_field("text", STORED),
        url: schema.add_text_field("url", STORED),
        date: schema.add_text_field("date", STORED),
        collection: schema.add_text_field("collection", STRING),
        file: schema.add_text_field("file", STRING),
        first_of: schema.add_text_field("first_of", STRING),
        record: schema.add_text_field("record", STORED),
    };
    (schema.build(), fields)
}
