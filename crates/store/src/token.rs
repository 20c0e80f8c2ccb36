//! Secrets of the console: what a session's cookie or a link holds. Only their digests are kept.

use chat::random_base62;
use sha2::{Digest, Sha256};

const LEN: usize = 43;

/// A secret of 256 random bits. It cannot be cloned, printed or compared.
pub struct Token(String);

impl Token {
    /// A new one; fails only if the system has no random numbers to give.
    pub fn generate() -> Result<Self, getrandom::Error> {
        Ok(Self(random_base62(LEN)?))
    }

    /// Reads one as a browser presents it; `None` if it cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let shaped = text.len() == LEN && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        shaped.then(|| Self(text.to_owned()))
    }

    /// The secret itself, for the one who is to hold it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Another secret that follows from this one and does not tell it; `purpose` tells several apart.
    pub fn derive(&self, purpose: &str) -> String {
        let digest = Sha256::new().chain_update(purpose).chain_update([0]).chain_update(&self.0).finalize();
        base16ct::lower::encode_string(&digest)
    }

    /// What is kept of it.
    pub(crate) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}
