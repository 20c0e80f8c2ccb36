//! The first page: the state of the service, the last day, and requests to copy.
//!
//! URLs of runtimes are for administrators only.

pub(crate) mod page;
mod runtime_table;
