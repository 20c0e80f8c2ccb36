//! Budgets and limits: the list, and the forms that other pages include.
//!
//! People see their own limits and those for everyone; only administrators set them. Nothing here knows the pages of keys.

pub(crate) mod form;
pub(crate) mod page;
