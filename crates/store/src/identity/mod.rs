//! People: accounts, sign-in, sessions, second factors and links. A change begins with the check that its viewer's session,
//! account and role are still valid (`Base::change`).

pub(crate) mod accounts;
pub(crate) mod challenges;
pub(crate) mod confirmations;
pub(crate) mod failures;
pub(crate) mod links;
mod profiles;
pub(crate) mod provider;
pub(crate) mod second_factors;
pub(crate) mod sessions;
