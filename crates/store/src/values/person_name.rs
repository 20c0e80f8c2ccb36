//! A person's display name.

/// 1 to 80 characters without control characters, trimmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonName(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to {} characters", PersonName::MAX_CHARS)]
pub struct PersonNameError;

impl PersonName {
    pub const MAX_CHARS: usize = 80;

    pub fn parse(text: &str) -> Result<Self, PersonNameError> {
        let name = text.trim();
        let is_valid = (1..=Self::MAX_CHARS).contains(&name.chars().count()) && !name.chars().any(char::is_control);
        if is_valid { Ok(Self(name.to_owned())) } else { Err(PersonNameError) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_trimmed_and_within_its_bounds() {
        assert_eq!(PersonName::parse(" Ada ").unwrap().as_str(), "Ada");
        for wrong in ["", " ", "a\tb", "é".repeat(PersonName::MAX_CHARS + 1).as_str()] {
            assert_eq!(PersonName::parse(wrong), Err(PersonNameError), "{wrong:?}");
        }
    }
}
