//! E-mail addresses.

use std::fmt;
use std::str::FromStr;

/// An e-mail address: trimmed, in lower case, and plausible.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Email(String);

impl Email {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Not checked again: it was checked before it was stored.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Email {
    type Err = EmailError;

    fn from_str(text: &str) -> Result<Self, EmailError> {
        let text = text.trim().to_lowercase();
        let plausible = text.len() <= 254
            && !text.chars().any(|character| character.is_whitespace() || character.is_control())
            && text.split_once('@').is_some_and(|(name, host)| {
                !name.is_empty() && !host.is_empty() && !host.contains('@') && !host.starts_with('.')
            });
        if plausible { Ok(Self(text)) } else { Err(EmailError) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("that is not an e-mail address")]
pub struct EmailError;
