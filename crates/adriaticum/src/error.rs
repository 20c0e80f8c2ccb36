//! The error that ends a command: one sentence for the user, and the remedy.

use std::error::Error;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

#[derive(Debug)]
pub(crate) struct CliError(String);

impl CliError {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }

    /// An error of a library, whose text is the sentence.
    pub(crate) fn from_error(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }

    /// One error with the sentences of all, if there are any.
    pub(crate) fn from_all(errors: impl IntoIterator<Item = Self>) -> Result<(), Self> {
        let sentences: Vec<_> = errors.into_iter().map(|error| error.0).collect();
        match sentences.is_empty() {
            true => Ok(()),
            false => Err(Self(sentences.join("\n"))),
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.0.is_empty()
    }

    /// Prints the sentence on standard error and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.0.is_empty() {
            // If standard error is closed, only the exit code reports the error.
            for line in self.0.lines() {
                let _ = writeln!(std::io::stderr(), "adriaticum: {line}");
            }
        }
        ExitCode::FAILURE
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<store::StoreError> for CliError {
    fn from(error: store::StoreError) -> Self {
        Self(format!("database error: {error}"))
    }
}

impl From<store::AccountError> for CliError {
    fn from(error: store::AccountError) -> Self {
        Self::from_error(error)
    }
}

impl From<store::PriceError> for CliError {
    fn from(error: store::PriceError) -> Self {
        Self::from_error(error)
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self(String::new()), // closed by the reader, as in `… | head`: not an error
            _ => Self(format!("the output cannot be written: {error}")),
        }
    }
}

/// The innermost source of an error. The outer ones only name the operation.
pub(crate) fn root_cause(mut error: &(dyn Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
