//! Accounts: one's own, the team, and the audit log of what people did.
//!
//! What only administrators may do takes an `Admin`. Nothing here knows keys, limits or usage.

pub(crate) mod account;
pub(crate) mod audit;
mod choice;
pub(crate) mod member;
pub(crate) mod team;

pub(crate) use self::choice::{PersonChoice, find_by_email, find_by_id};
