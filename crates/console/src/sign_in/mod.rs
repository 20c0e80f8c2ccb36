//! Signing in and out, second factors, one-time links, and confirmations of changes.
//!
//! Visitors who have proven nothing leave nothing behind: their challenges are signed, not stored. A session begins only
//! with a proof that the store checks again. Nothing here knows other people's accounts or keys.

pub(crate) mod confirmation;
pub(crate) mod first_step;
#[cfg(test)]
mod fuzz;
pub(crate) mod links;
pub(crate) mod passkeys;
mod password_check;
pub(crate) mod provider;
pub(crate) mod second_factor;
pub(crate) mod second_step;

pub(crate) use self::password_check::check_password;
