//! Budgets and limits: the list, and the forms that other pages include.
//!
//! People see their own limits and those for everyone; only administrators set them.

pub(crate) mod page;
