//! API keys: `adria_` + 12 base62 characters (the public id) + `_` + 43 base62 characters of secret + 6 of CRC-32.
//!
//! A plaintext key cannot be cloned, printed or compared; it can only be shown once (`reveal`) or hashed (`digest`).
//! The checksum covers everything before it and rejects typing errors without a database query.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const PREFIX: &str = "adria_";
const ID_LEN: usize = 12;
const SECRET_LEN: usize = 43;
const CHECKSUM_LEN: usize = 6;
const ID_AT: usize = PREFIX.len();
const SECRET_AT: usize = ID_AT + ID_LEN + 1;
const CHECKSUM_AT: usize = SECRET_AT + SECRET_LEN;
const KEY_LEN: usize = CHECKSUM_AT + CHECKSUM_LEN;

/// A whole key in plaintext.
pub struct ApiKey(String);

impl ApiKey {
    /// A regular expression for secret scanners.
    pub const PATTERN: &str = "adria_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}";

    /// Fails only if the system's random number generator does.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let random = random_base62(ID_LEN + SECRET_LEN)?;
        let (id, secret) = random.split_at(ID_LEN);
        Ok(Self::assemble(id, secret))
    }

    /// A key with a new secret and the same public id.
    pub fn generate_for(id: KeyId) -> Result<Self, getrandom::Error> {
        Ok(Self::assemble(id.as_str(), &random_base62(SECRET_LEN)?))
    }

    pub fn parse(text: &str) -> Result<Self, ApiKeyError> {
        let bytes = text.as_bytes();
        let has_format = bytes.len() == KEY_LEN
            && text.starts_with(PREFIX)
            && bytes[SECRET_AT - 1] == b'_'
            && bytes[ID_AT..SECRET_AT - 1].iter().chain(&bytes[SECRET_AT..]).all(u8::is_ascii_alphanumeric);
        if has_format && checksum(&bytes[..CHECKSUM_AT]) == bytes[CHECKSUM_AT..] {
            Ok(Self(text.to_owned()))
        } else {
            Err(ApiKeyError)
        }
    }

    /// The public part: the database's primary key.
    pub fn id(&self) -> KeyId {
        let mut id = [0; ID_LEN];
        id.copy_from_slice(&self.0.as_bytes()[ID_AT..ID_AT + ID_LEN]);
        KeyId(id)
    }

    /// The digest that is stored.
    pub fn digest(&self) -> KeyDigest {
        KeyDigest(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The plaintext, to show to its owner once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn assemble(id: &str, secret: &str) -> Self {
        let mut text = String::with_capacity(KEY_LEN);
        text.push_str(PREFIX);
        text.push_str(id);
        text.push('_');
        text.push_str(secret);
        let checksum = checksum(text.as_bytes());
        text.extend(checksum.map(char::from));
        Self(text)
    }
}

fn checksum(covered: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut rest = crc32fast::hash(covered) as usize;
    let mut digits = [0; CHECKSUM_LEN];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[rest % ALPHABET.len()];
        rest /= ALPHABET.len();
    }
    digits
}

/// Random base62 characters from the system; fails only if its random number generator does.
pub fn random_base62(count: usize) -> Result<String, getrandom::Error> {
    let mut text = String::with_capacity(count);
    let mut random = [0u8; 64];
    while text.len() < count {
        getrandom::fill(&mut random)?;
        // 248 is the largest multiple of 62 in a byte: larger bytes would favour some characters.
        let unbiased = random.iter().filter(|&&byte| byte < 248);
        let wanted = count - text.len();
        text.extend(unbiased.take(wanted).map(|byte| char::from(ALPHABET[usize::from(byte % 62)])));
    }
    Ok(text)
}

/// Wrong format or wrong checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an API key")]
pub struct ApiKeyError;

/// The public id of a key: 12 base62 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; ID_LEN]);

impl KeyId {
    /// The bytes sort like the text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("a key id is ASCII by construction")
    }
}

impl std::str::FromStr for KeyId {
    type Err = ApiKeyError;

    /// Parses an id with or without the prefix `adria_`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let id = text.strip_prefix(PREFIX).unwrap_or(text);
        let bytes: [u8; ID_LEN] = id.as_bytes().try_into().map_err(|_| ApiKeyError)?;
        if bytes.iter().all(u8::is_ascii_alphanumeric) { Ok(Self(bytes)) } else { Err(ApiKeyError) }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The SHA-256 of a whole key, the only stored form of its secret.
#[derive(Clone, Copy)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Compares in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_generated_key_round_trips_with_the_same_id_and_digest() {
        let key = ApiKey::generate().unwrap();
        let read = ApiKey::parse(key.reveal()).unwrap();
        assert_eq!(key.id(), read.id());
        assert!(key.digest().matches(&read.digest()));
        assert_eq!(key.reveal().len(), KEY_LEN);
        assert_eq!(key.id().to_string().parse(), Ok(key.id()));
    }

    #[test]
    fn generated_keys_use_the_whole_alphabet_evenly() {
        let mut seen = [0u32; 128];
        for _ in 0..2000 {
            let key = ApiKey::generate().unwrap();
            key.reveal()[SECRET_AT..CHECKSUM_AT].bytes().for_each(|b| seen[usize::from(b)] += 1);
        }
        let mean = 2000 * SECRET_LEN as u32 / 62;
        for &character in ALPHABET {
            let count = seen[usize::from(character)];
            assert!(count.abs_diff(mean) < mean / 4, "{}: {count}, mean {mean}", char::from(character));
        }
    }

    /// Keys that proptest can replay, unlike generated ones.
    fn key() -> impl Strategy<Value = String> {
        ("[0-9A-Za-z]{12}", "[0-9A-Za-z]{43}").prop_map(|(id, secret)| ApiKey::assemble(&id, &secret).0)
    }

    proptest! {
        #[test]
        fn a_changed_character_is_detected(key in key(), at in 0..KEY_LEN, to in "[0-9A-Za-z_]") {
            let mut changed = key.clone();
            changed.replace_range(at..=at, &to);
            prop_assert_eq!(ApiKey::parse(&changed).is_ok(), changed == key);
        }

        #[test]
        fn two_swapped_characters_are_detected(key in key(), at in 0..KEY_LEN - 1) {
            let mut bytes = key.clone().into_bytes();
            bytes.swap(at, at + 1);
            let swapped = String::from_utf8(bytes).unwrap();
            prop_assert_eq!(ApiKey::parse(&swapped).is_ok(), swapped == key);
        }

        #[test]
        fn arbitrary_text_is_refused_without_panic(noise in "\\PC{0,90}") {
            prop_assert!(ApiKey::parse(&noise).is_err());
        }
    }
}
