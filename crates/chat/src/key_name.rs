//! The name of a key.

use std::fmt;

/// 1 to 100 characters, none of them a control character, without surrounding white space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyName(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key's name has 1 to {} printable characters", KeyName::MAX_CHARS)]
pub struct KeyNameError;

impl KeyName {
    pub const MAX_CHARS: usize = 100;

    pub fn parse(text: &str) -> Result<Self, KeyNameError> {
        let name = text.trim();
        let is_valid = (1..=Self::MAX_CHARS).contains(&name.chars().count()) && !name.chars().any(char::is_control);
        if is_valid { Ok(Self(name.to_owned())) } else { Err(KeyNameError) }
    }

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
        for wrong in ["x".repeat(KeyName::MAX_CHARS + 1).as_str(), " \t ", "", "a\nb"] {
            assert_eq!(KeyName::parse(wrong), Err(KeyNameError), "{wrong:?}");
        }
    }
}
