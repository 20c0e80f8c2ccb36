//! The log line that every request leaves: names with their values. There are as many as requests, so they bypass
//! `tracing` and must be cheap.

use std::fmt::Debug;

/// Writes log lines of requests; nobody waits for it.
pub trait RequestLog: Debug + Send + Sync {
    /// Fields without a value are left out.
    fn write(&self, fields: &[(&'static str, Option<Field<'_>>)]);
}

#[derive(Debug, Clone, Copy)]
pub enum Field<'a> {
    Text(&'a str),
    Number(u64),
}
