//! Passwords: what a new one must have, and Argon2id. Hashing takes much memory and time on purpose, so only a few run
//! at a time.

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::Semaphore;

pub(crate) const MIN_CHARS: usize = 10;
const MAX_CHARS: usize = 200;
/// What OWASP recommends for Argon2id: 19 MiB, two iterations, one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const ITERATIONS: u32 = 2;
const MAX_CONCURRENT_HASHES: usize = 2;
/// No password has this hash. It is verified for an unknown account, so that this takes as long as for a known one.
const UNKNOWN_ACCOUNT_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

pub(crate) struct Passwords {
    permits: Semaphore,
}

impl Default for Passwords {
    fn default() -> Self {
        Self { permits: Semaphore::new(MAX_CONCURRENT_HASHES) }
    }
}

impl Passwords {
    /// `None` only if the system has no random numbers to give.
    pub(crate) async fn hash(&self, password: NewPassword) -> Option<String> {
        self.run(move || password.hash()).await.flatten()
    }

    /// Without a hash this takes as long, and is `false`.
    pub(crate) async fn verify(&self, typed: &str, hash: Option<String>) -> bool {
        let typed: String = typed.chars().take(MAX_CHARS).collect();
        let verified = self.run(move || {
            let is_known = hash.is_some();
            let hash = hash.unwrap_or_else(|| UNKNOWN_ACCOUNT_HASH.into());
            let matches =
                PasswordHash::new(&hash).is_ok_and(|hash| argon2().verify_password(typed.as_bytes(), &hash).is_ok());
            is_known & matches
        });
        verified.await.unwrap_or(false)
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let _permit = self.permits.acquire().await.ok()?;
        tokio::task::spawn_blocking(work).await.ok()
    }
}

fn argon2() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, ITERATIONS, 1, None).expect("the parameters are within their bounds");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

pub(crate) struct NewPassword(String);

/// A sentence for the person who typed it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PasswordError {
    #[error("The password needs at least {MIN_CHARS} characters; a few words make a good one.")]
    TooShort,
    #[error("The password can have at most {MAX_CHARS} characters.")]
    TooLong,
    #[error("The password must not be the e-mail address.")]
    IsEmail,
    #[error("The password must not be one character repeated.")]
    OneCharacter,
    #[error("The passwords do not match.")]
    Mismatch,
}

impl NewPassword {
    pub(crate) fn parse(typed: &str, repeated: &str, email: &str) -> Result<Self, PasswordError> {
        let length = typed.chars().count();
        if length < MIN_CHARS {
            return Err(PasswordError::TooShort);
        }
        if length > MAX_CHARS {
            return Err(PasswordError::TooLong);
        }
        if !email.is_empty() && typed.trim().eq_ignore_ascii_case(email) {
            return Err(PasswordError::IsEmail);
        }
        if typed.chars().all(|character| typed.starts_with(character)) {
            return Err(PasswordError::OneCharacter);
        }
        if typed != repeated {
            return Err(PasswordError::Mismatch);
        }
        Ok(Self(typed.to_owned()))
    }

    fn hash(&self) -> Option<String> {
        let mut salt = [0; 16];
        getrandom::fill(&mut salt).ok()?;
        let salt = SaltString::encode_b64(&salt).ok()?;
        argon2().hash_password(self.0.as_bytes(), &salt).ok().map(|hash| hash.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_is_accepted_and_another_or_none_is_not() {
        let passwords = Passwords::default();
        let password = NewPassword::parse("correct horse", "correct horse", "a@b").unwrap();
        let hash = passwords.hash(password).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(passwords.verify("correct horse", Some(hash.clone())).await);
        assert!(!passwords.verify("correct horse ", Some(hash)).await);
        assert!(!passwords.verify("correct horse", None).await);
        assert!(PasswordHash::new(UNKNOWN_ACCOUNT_HASH).is_ok(), "or an unknown account takes no time");
    }

    #[test]
    fn a_weak_password_is_refused_with_the_reason() {
        for (typed, repeated, part) in [
            ("short", "short", "at least"),
            ("aaaaaaaaaaaa", "aaaaaaaaaaaa", "repeated"),
            ("ada@example.com", "ada@example.com", "e-mail"),
            ("long enough", "long enougH", "do not match"),
        ] {
            let error = NewPassword::parse(typed, repeated, "ada@example.com").err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
