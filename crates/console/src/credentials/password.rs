//! Passwords: the rules for new ones, and hashing with Argon2id.

use argon2::password_hash::{Output, ParamsString, PasswordHash, SaltString};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use subtle::ConstantTimeEq;

use crate::credentials::SignInAttempt;
use crate::credentials::hash_pool::{HashPool, Memory};

pub(crate) const MIN_CHARS: usize = 10;
const MAX_CHARS: usize = 200;
/// OWASP's recommendation for Argon2id: 19 MiB, two iterations, one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const ITERATIONS: u32 = 2;
/// A stored hash may have been made with other parameters, within these bounds.
const MAX_MEMORY_KIB: u32 = 64 * 1024;
const MAX_ITERATIONS: u32 = 10;
/// Matches no password. Verified for an unknown account, so that this takes as long as for a known one.
const UNKNOWN_ACCOUNT_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

pub(crate) struct Passwords {
    pool: HashPool,
}

impl Passwords {
    pub(crate) fn new() -> Self {
        Self { pool: HashPool::new() }
    }

    /// `None` if the system has no random numbers, or if hashing panicked.
    pub(crate) async fn hash(&self, attempt: &SignInAttempt<'_>, password: NewPassword) -> Option<String> {
        self.pool.run(attempt.network(), move |memory| password.hash(memory)).await.flatten()
    }

    /// `false` without a hash, after the same time.
    pub(crate) async fn verify(&self, attempt: &SignInAttempt<'_>, typed: &str, hash: Option<String>) -> bool {
        let typed: String = typed.chars().take(MAX_CHARS).collect();
        let verified = self.pool.run(attempt.network(), move |memory| match hash {
            Some(hash) => matches(&typed, &hash, memory).unwrap_or_else(|| {
                tracing::error!("a password cannot be verified: its stored hash is malformed or out of bounds");
                false
            }),
            None => {
                matches(&typed, UNKNOWN_ACCOUNT_HASH, memory);
                false
            }
        });
        verified.await.unwrap_or(false)
    }
}

/// The parameters of new hashes.
fn parameters() -> Params {
    Params::new(MEMORY_KIB, ITERATIONS, 1, Some(Params::DEFAULT_OUTPUT_LEN)).expect("they are within Argon2's bounds")
}

/// Whether the password matches the hash, by the hash's own parameters; `None` if it is malformed or out of bounds.
fn matches(typed: &str, hash: &str, memory: &mut Memory) -> Option<bool> {
    let hash = PasswordHash::new(hash).ok()?;
    let parameters = Params::try_from(&hash).ok()?;
    if parameters.m_cost() > MAX_MEMORY_KIB || parameters.t_cost() > MAX_ITERATIONS {
        return None;
    }
    let algorithm = Algorithm::try_from(hash.algorithm).ok()?;
    let version = hash.version.map_or(Ok(Version::default()), Version::try_from).ok()?;
    let (mut decoded, expected) = ([0; 64], hash.hash?);
    let salt = hash.salt?.decode_b64(&mut decoded).ok()?;
    let mut output = vec![0; expected.len()];
    run_argon2(&Argon2::new(algorithm, version, parameters), typed, salt, &mut output, memory)?;
    Some(output.ct_eq(expected.as_bytes()).into())
}

fn run_argon2(argon2: &Argon2<'_>, password: &str, salt: &[u8], output: &mut [u8], memory: &mut Memory) -> Option<()> {
    let kept = parameters().block_count();
    let needed = argon2.params().block_count().max(kept);
    memory.reserve_exact(needed.saturating_sub(memory.len()));
    memory.resize(needed, Block::new());
    let result = argon2.hash_password_into_with_memory(password.as_bytes(), salt, output, memory.as_mut_slice());
    // An old hash may have needed more.
    memory.truncate(kept);
    memory.shrink_to_fit();
    result.ok()
}

pub(crate) struct NewPassword(String);

/// Each message is a sentence for the person.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PasswordError {
    #[error("The password needs at least {MIN_CHARS} characters. A few words make a good password.")]
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

    fn hash(&self, memory: &mut Memory) -> Option<String> {
        let (mut salt, parameters) = ([0; 16], parameters());
        getrandom::fill(&mut salt).ok()?;
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters.clone());
        let mut output = [0; Params::DEFAULT_OUTPUT_LEN];
        run_argon2(&argon2, &self.0, &salt, &mut output, memory)?;
        let salt = SaltString::encode_b64(&salt).ok()?;
        let hash = PasswordHash {
            algorithm: Algorithm::Argon2id.ident(),
            version: Some(Version::V0x13.into()),
            params: ParamsString::try_from(&parameters).ok()?,
            salt: Some(salt.as_salt()),
            hash: Some(Output::new(&output).ok()?),
        };
        Some(hash.to_string())
    }
}

#[cfg(test)]
mod tests {
    use argon2::password_hash::{PasswordHasher, PasswordVerifier};

    use super::*;
    use crate::credentials::throttle::SignInThrottle;

    const SALT: &[u8] = b"a salt of 16 byt";

    #[tokio::test]
    async fn a_password_is_accepted_and_another_or_none_is_not() {
        let passwords = Passwords::new();
        let (throttle, _folder) = SignInThrottle::with_own_store().await;
        let attempt = throttle.enter("127.0.0.1".parse().unwrap()).ok().unwrap();
        let password = NewPassword::parse("correct horse", "correct horse", "a@b").unwrap();
        let hash = passwords.hash(&attempt, password).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(passwords.verify(&attempt, "correct horse", Some(hash.clone())).await);
        assert!(!passwords.verify(&attempt, "correct horse ", Some(hash.clone())).await);
        assert!(!passwords.verify(&attempt, "correct horse", None).await);
        assert!(!passwords.verify(&attempt, "correct horse", Some("nonsense".into())).await);
        let theirs = Argon2::default().verify_password(b"correct horse", &PasswordHash::new(&hash).unwrap());
        assert!(theirs.is_ok(), "other programs can verify the hash");
    }

    #[test]
    fn an_unknown_account_takes_as_long_as_a_known_one() {
        assert_eq!(matches("any", UNKNOWN_ACCOUNT_HASH, &mut Memory::new()), Some(false));
        let parsed = PasswordHash::new(UNKNOWN_ACCOUNT_HASH).unwrap();
        assert_eq!(Params::try_from(&parsed).unwrap(), parameters());
    }

    #[test]
    fn hashes_with_other_parameters_are_verified_in_reused_memory_that_does_not_grow() {
        let mut memory = Memory::new();
        for (algorithm, version, kib, iterations, lanes) in [
            (Algorithm::Argon2id, Version::V0x13, 19 * 1024, 2, 1),
            (Algorithm::Argon2id, Version::V0x13, 32 * 1024, 3, 4),
            (Algorithm::Argon2i, Version::V0x10, 64, 3, 2),
            (Algorithm::Argon2d, Version::V0x13, 8 * 1024, 1, 1),
            (Algorithm::Argon2id, Version::V0x13, 64 * 1024, 1, 1),
            (Algorithm::Argon2id, Version::V0x13, 47, 10, 1),
        ] {
            let parameters = Params::new(kib, iterations, lanes, None).unwrap();
            let salt = SaltString::encode_b64(SALT).unwrap();
            let argon2 = Argon2::new(algorithm, version, parameters);
            let hash = argon2.hash_password(b"correct horse", &salt).unwrap().to_string();
            assert_eq!(matches("correct horse", &hash, &mut memory), Some(true), "{hash}");
            assert_eq!(matches("correct horsf", &hash, &mut memory), Some(false), "{hash}");
            assert_eq!(memory.capacity(), 19 * 1024, "{hash}");
        }
        for parameters in ["m=65537,t=2,p=1", "m=19456,t=11,p=1", "m=4294967295,t=4294967295,p=1"] {
            let hash = UNKNOWN_ACCOUNT_HASH.replace("m=19456,t=2,p=1", parameters);
            assert_eq!(matches("any", &hash, &mut memory), None, "{hash}");
        }
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
