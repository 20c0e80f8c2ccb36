//! What the log says about a request: names with their values. One for every request, so that it has to be cheap: it goes to
//! whoever writes it as it is, beside what is logged now and then.

use std::fmt::Debug;

/// Takes what is to be said about requests; nobody waits for it to be written.
pub trait RequestLog: Debug + Send + Sync {
    /// One request has ended. Values that are not there are not told.
    fn tell(&self, fields: &[(&'static str, Option<Field<'_>>)]);
}

/// A value in the log.
#[derive(Debug, Clone, Copy)]
pub enum Field<'a> {
    /// An id or a name.
    Text(&'a str),
    /// A figure.
    Number(u64),
}
