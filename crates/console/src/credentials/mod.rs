//! How people prove who they are: passwords, codes of authenticator apps, groups of the identity provider, and the limits
//! of guessing.
//!
//! A password is hashed only with a `SignInAttempt`, of which there are few, in fair shares. Nothing here knows pages,
//! forms or cookies.

mod authenticator;
mod hash_pool;
mod identity_provider;
mod outcome;
mod password;
mod throttle;
mod wrong_passwords;

pub(crate) use self::authenticator::AuthenticatorKey;
pub use self::identity_provider::{CALLBACK_PATH, IdentityProvider};
pub(crate) use self::outcome::SignInOutcome;
pub use self::outcome::{SIGN_IN_OUTCOMES, SignInCounters};
pub(crate) use self::password::{MIN_CHARS, NewPassword, Passwords};
pub(crate) use self::throttle::{SignInAttempt, SignInThrottle, TooManyAttempts};
pub(crate) use self::wrong_passwords::WrongPasswordLog;
