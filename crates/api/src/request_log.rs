//! The log line of a request: names with their values. Every request has one, so they bypass `tracing` and must be cheap.

use std::fmt::Debug;

/// Writes log lines of requests, without blocking.
pub trait RequestLog: Debug + Send + Sync {
    /// Fields without a value are left out.
    fn write(&self, fields: &[(&'static str, Option<Field<'_>>)]);
}

#[derive(Debug, Clone, Copy)]
pub enum Field<'a> {
    Text(&'a str),
    Number(u64),
}
