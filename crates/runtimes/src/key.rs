//! A runtime's API key. It is sent in one header and never shown.

use std::str::FromStr;

use http::HeaderValue;

/// Kept as the header's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeKey(HeaderValue);

impl RuntimeKey {
    pub(crate) fn header(&self) -> &HeaderValue {
        &self.0
    }
}

impl FromStr for RuntimeKey {
    type Err = RuntimeKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(RuntimeKeyError);
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}")).map_err(|_| RuntimeKeyError)?;
        header.set_sensitive(true); // hidden from Debug
        Ok(Self(header))
    }
}

/// Does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key may have only letters, digits and punctuation of ASCII, and no spaces")]
pub struct RuntimeKeyError;
