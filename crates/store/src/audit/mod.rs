//! The audit log: a line for every change, written in the change's own transaction.

pub(crate) mod action;
pub(crate) mod log;
