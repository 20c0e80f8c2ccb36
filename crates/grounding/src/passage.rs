//! A result of Search: untrusted text until `augment` has cleaned it.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

/// A part of a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    /// The document's title.
    pub title: String,
    pub url: String,
    pub text: String,
    /// When the document was written, if known.
    pub date: Option<Date>,
    /// Its relevance to the query, if known; 1 is very high.
    #[serde(skip)]
    pub score: Option<f32>,
}
