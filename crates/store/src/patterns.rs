//! What `LIKE` compares with.

/// Patterns for whatever contains a text. SQLite's `lower` knows only ASCII, so a statement compares the lower case of a
/// column with one of them, and the column itself with the other: other letters match at least as they were typed.
pub(crate) struct Patterns {
    pub(crate) lower: String,
    pub(crate) typed: String,
}

impl Patterns {
    /// `%%` for an empty text.
    pub(crate) fn containing(text: &str) -> Self {
        // PostgreSQL has no text with a NUL.
        let typed = text.trim().replace('\0', "").replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
        Self { lower: format!("%{}%", typed.to_lowercase()), typed: format!("%{typed}%") }
    }
}
