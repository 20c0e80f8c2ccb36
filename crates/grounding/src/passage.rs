//! What Search finds: untrusted text, until `augment` has cleaned it.

use jiff::civil::Date;

/// A piece of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// The document's.
    pub title: String,
    pub url: String,
    pub text: String,
    /// When the document was written, if known.
    pub date: Option<Date>,
}
