//! Patterns for `LIKE`.

/// Patterns that match a text anywhere in a column. SQLite's `lower` supports only ASCII, so a statement compares the
/// column in lower case with one pattern and the column itself with the other: other letters match at least as typed.
pub(crate) struct Patterns {
    pub(crate) lower: String,
    pub(crate) typed: String,
}

impl Patterns {
    /// `%%` for an empty text.
    pub(crate) fn containing(text: &str) -> Self {
        // PostgreSQL's texts cannot contain NUL.
        let typed = text.trim().replace('\0', "").replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
        Self { lower: format!("%{}%", typed.to_lowercase()), typed: format!("%{typed}%") }
    }
}
