//! What Search finds: untrusted text, until `augment` has cleaned it.

use jiff::civil::Date;

/// A piece of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// The document's.
    pub title: String,
    pub url: String,
    pub text: String,
    /// When the document was written, if known.
    pub date: Option<Date>,
    /// How well it fits what was searched for, where that is known: 1 is very well.
    pub score: Option<f32>,
}
