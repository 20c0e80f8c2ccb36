//! Output of commands.

use std::io::Write;

use serde::Serialize;

use crate::error::CliError;

pub(crate) fn print_line(text: &str) -> Result<(), CliError> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    print_line(&serde_json::to_string_pretty(value).expect("plain rows always serialize"))
}

/// Prints a remark on standard error, separate from the result. Failures are ignored.
pub(crate) fn print_note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
