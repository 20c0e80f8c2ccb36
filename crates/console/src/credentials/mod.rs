//! How people prove who they are: password hashes, codes of authenticator apps, and the limits of guessing.
//!
//! A password is hashed only with an `Attempt`, of which there are few, in fair shares. Nothing here knows pages, forms
//! or cookies.

pub(crate) mod authenticator;
pub(crate) mod hash_pool;
pub(crate) mod password;
pub(crate) mod throttle;
pub(crate) mod turns;
pub(crate) mod wrong_passwords;
