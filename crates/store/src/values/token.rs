//! Secrets in session cookies and links. Only their digests are stored.

use chat::random_base62;
use sha2::{Digest, Sha256};

const LEN: usize = 43;

/// A secret of 256 random bits. It cannot be cloned, printed or compared.
pub struct Token(String);

impl Token {
    /// Fails only if the system returns no random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        Ok(Self(random_base62(LEN)?))
    }

    /// `None` if the text is not in the form of a token.
    pub fn parse(text: &str) -> Option<Self> {
        let shaped = text.len() == LEN && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        shaped.then(|| Self(text.to_owned()))
    }

    /// The secret itself, for a cookie or link.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Another secret, which does not reveal this one. Each purpose gets a different secret.
    pub fn derive(&self, purpose: &str) -> String {
        let digest = Sha256::new().chain_update(purpose).chain_update([0]).chain_update(&self.0).finalize();
        base16ct::lower::encode_string(&digest)
    }

    /// The digest that is stored.
    pub(crate) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}
