//! What a person at the command line is told when something does not work: one sentence, and what to do about it.

use std::fmt;

/// A sentence for the person at the command line.
#[derive(Debug)]
pub(crate) struct Complaint(String);

impl Complaint {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
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
        Self(format!("writing the output failed: {error}"))
    }
}

impl From<csv::Error> for Complaint {
    fn from(error: csv::Error) -> Self {
        Self(format!("writing the output failed: {error}"))
    }
}
