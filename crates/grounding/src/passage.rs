//! What Search finds. Everything in it was written by somebody else: hostile text, until it is augmentation.

use jiff::civil::Date;

/// One piece of a document that Search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// What the document is called.
    pub title: String,
    /// Where it is.
    pub url: String,
    /// What it says, as it stands there.
    pub text: String,
    /// When it was written, if that is known.
    pub date: Option<Date>,
}
