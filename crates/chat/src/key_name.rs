//! What people call a key.

use std::fmt;

/// A key's name: 1 to 100 characters, none of them a control character, without white space around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyName(String);

/// Why a text is no key's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyNameError {
    /// Nothing but white space.
    #[error("a key needs a name")]
    Empty,
    /// Too long.
    #[error("a key's name has at most {} characters", KeyName::MAX_CHARS)]
    TooLong,
    /// A line break, a tab or the like.
    #[error("a key's name has no control characters")]
    ControlCharacter,
}

impl KeyName {
    /// Characters at the most.
    pub const MAX_CHARS: usize = 100;

    /// Reads what somebody typed.
    pub fn parse(text: &str) -> Result<Self, KeyNameError> {
        let name = text.trim();
        match name {
            "" => Err(KeyNameError::Empty),
            _ if name.chars().count() > Self::MAX_CHARS => Err(KeyNameError::TooLong),
            _ if name.chars().any(char::is_control) => Err(KeyNameError::ControlCharacter),
            _ => Ok(Self(name.to_owned())),
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<KeyName> for String {
    fn from(name: KeyName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_trimmed_and_within_its_bounds() {
        assert_eq!(KeyName::parse("  my app ").unwrap().as_str(), "my app");
        assert!(KeyName::parse(&"é".repeat(KeyName::MAX_CHARS)).is_ok(), "characters count, not bytes");
        assert_eq!(KeyName::parse(&"x".repeat(KeyName::MAX_CHARS + 1)), Err(KeyNameError::TooLong));
        assert_eq!(KeyName::parse(" \t "), Err(KeyNameError::Empty));
        assert_eq!(KeyName::parse("a\nb"), Err(KeyNameError::ControlCharacter));
    }
}
