//! The audit log: a line for every change, written in the change's own transaction: there is no
//! change without its line, and no line without its change. Lines are never changed or deleted.

pub(crate) mod action;
pub(crate) mod log;
