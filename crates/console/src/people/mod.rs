//! Accounts: one's own, the team, and the audit log of what people did.
//!
//! What only administrators may do takes an `Admin`. Nothing here knows keys, limits or usage.

pub(crate) mod account;
pub(crate) mod audit;
pub(crate) mod choice;
pub(crate) mod member;
pub(crate) mod team;
