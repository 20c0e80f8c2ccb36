//! What a person at the command line is told when something does not work: one sentence, and what to do about it.

use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// A sentence for the person at the command line.
#[derive(Debug)]
pub(crate) struct Complaint(String);

impl Complaint {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }

    /// Tells it, and gives the exit code that goes with it.
    pub(crate) fn tell(&self) -> ExitCode {
        if !self.0.is_empty() {
            // If there is nobody to tell it to, the exit code has to do.
            let _ = writeln!(std::io::stderr(), "adriaticum: {self}");
        }
        ExitCode::FAILURE
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<store::StoreError> for Complaint {
    fn from(error: store::StoreError) -> Self {
        Self(format!("the database failed: {error}"))
    }
}

impl From<std::io::Error> for Complaint {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self(String::new()), // the reader has had enough: nothing to complain about
            _ => Self(format!("the output cannot be written: {error}")),
        }
    }
}

impl From<csv::Error> for Complaint {
    fn from(error: csv::Error) -> Self {
        match error.into_kind() {
            csv::ErrorKind::Io(error) => error.into(),
            other => Self(format!("the output cannot be written: {other:?}")),
        }
    }
}
