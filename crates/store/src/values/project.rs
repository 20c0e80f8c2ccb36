//! The project of a key: a free label, by which usage is grouped and priced. A key has at most one. A request counts for
//! the label that its key had at that time.

use std::fmt;
use std::sync::Arc;

/// 1 to 60 characters, none of them a control character, without surrounding white space.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Project(Arc<str>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a project has 1 to {} printable characters", Project::MAX_CHARS)]
pub struct ProjectError;

impl Project {
    pub const MAX_CHARS: usize = 60;

    pub fn parse(text: &str) -> Result<Self, ProjectError> {
        let label = text.trim();
        let is_valid = (1..=Self::MAX_CHARS).contains(&label.chars().count()) && !label.chars().any(char::is_control);
        if is_valid { Ok(Self(label.into())) } else { Err(ProjectError) }
    }

    /// Parses a form field: `None` if it is empty.
    pub fn parse_optional(text: &str) -> Result<Option<Self>, ProjectError> {
        if text.trim().is_empty() { Ok(None) } else { Self::parse(text).map(Some) }
    }

    /// Not checked again: it was checked before it was stored.
    pub(crate) fn stored(label: &str) -> Self {
        Self(label.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Project {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_trimmed_and_within_its_bounds() {
        assert_eq!(Project::parse("  Search 2 ").unwrap().as_str(), "Search 2");
        assert!(Project::parse(&"é".repeat(Project::MAX_CHARS)).is_ok(), "characters count, not bytes");
        for wrong in ["x".repeat(Project::MAX_CHARS + 1).as_str(), " \t ", "", "a\nb"] {
            assert_eq!(Project::parse(wrong), Err(ProjectError), "{wrong:?}");
        }
        assert_eq!(Project::parse_optional("  "), Ok(None));
        assert_eq!(Project::parse_optional("a\u{7}"), Err(ProjectError));
    }
}
