//! Passwords: what is asked of them, and Argon2id. Hashing takes memory and time on purpose, so only so many at once.

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::Semaphore;

/// Characters of a password at least and at the most.
pub(crate) const SHORTEST: usize = 10;
const LONGEST: usize = 200;
/// What OWASP recommends for Argon2id: 19 MiB, two passes, one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const AT_ONCE: usize = 2;
/// A hash that no password has, with our parameters: whoever signs in to no account waits as long as everyone.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

pub(crate) struct Passwords {
    room: Semaphore,
}

impl Default for Passwords {
    fn default() -> Self {
        Self { room: Semaphore::new(AT_ONCE) }
    }
}

impl Passwords {
    /// The hash to be kept of a new password.
    pub(crate) async fn hash(&self, password: Password) -> Option<String> {
        self.run(move || password.hash()).await.flatten()
    }

    /// Whether a password is the one behind a hash. Takes as long without a hash, and then it is not.
    pub(crate) async fn verify(&self, typed: &str, hash: Option<String>) -> bool {
        let typed: String = typed.chars().take(LONGEST).collect();
        let verified = self.run(move || {
            let known = hash.is_some();
            let hash = hash.unwrap_or_else(|| NOBODY.into());
            let right =
                PasswordHash::new(&hash).is_ok_and(|hash| argon().verify_password(typed.as_bytes(), &hash).is_ok());
            known & right
        });
        verified.await.unwrap_or(false)
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let _place = self.room.acquire().await.ok()?;
        tokio::task::spawn_blocking(work).await.ok()
    }
}

fn argon() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).expect("the parameters are within their bounds");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// A new password that is good enough.
pub(crate) struct Password(String);

impl Password {
    /// What is wrong with a new password is a sentence for the person who typed it.
    pub(crate) fn choose(typed: &str, repeated: &str, email: &str) -> Result<Self, String> {
        let length = typed.chars().count();
        if length < SHORTEST {
            return Err(format!("The password needs at least {SHORTEST} characters; a few words make a good one."));
        }
        if length > LONGEST {
            return Err(format!("The password can have at most {LONGEST} characters."));
        }
        if !email.is_empty() && typed.trim().eq_ignore_ascii_case(email) {
            return Err("The password must not be the e-mail address.".into());
        }
        if typed.chars().all(|character| typed.starts_with(character)) {
            return Err("The password must not be one character again and again.".into());
        }
        if typed != repeated {
            return Err("The two passwords are not the same.".into());
        }
        Ok(Self(typed.to_owned()))
    }

    /// `None` only if the system has no random numbers to give.
    fn hash(&self) -> Option<String> {
        let mut salt = [0; 16];
        getrandom::fill(&mut salt).ok()?;
        let salt = SaltString::encode_b64(&salt).ok()?;
        argon().hash_password(self.0.as_bytes(), &salt).ok().map(|hash| hash.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_is_accepted_and_another_or_none_is_not() {
        let passwords = Passwords::default();
        let chosen = Password::choose("correct horse", "correct horse", "a@b").unwrap();
        let hash = passwords.hash(chosen).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(passwords.verify("correct horse", Some(hash.clone())).await);
        assert!(!passwords.verify("correct horse ", Some(hash)).await);
        assert!(!passwords.verify("correct horse", None).await);
        assert!(PasswordHash::new(NOBODY).is_ok(), "or else nobody's password takes no time");
    }

    #[test]
    fn what_is_too_weak_is_said() {
        for (typed, repeated, part) in [
            ("short", "short", "at least"),
            ("aaaaaaaaaaaa", "aaaaaaaaaaaa", "again and again"),
            ("ada@example.com", "ada@example.com", "e-mail"),
            ("long enough", "long enougH", "not the same"),
        ] {
            let complaint = Password::choose(typed, repeated, "ada@example.com").err().unwrap();
            assert!(complaint.contains(part), "{complaint}");
        }
    }
}
