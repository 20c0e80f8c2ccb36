//! Output of commands.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;

use crate::error::CliError;
use crate::table::Table;

pub(crate) fn print_line(text: &str) -> Result<(), CliError> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    print_line(&serde_json::to_string_pretty(value).expect("plain rows always serialize"))
}

/// Prints rows as JSON or as a table, or this sentence instead of an empty table.
pub(crate) fn print_list<T, const N: usize>(
    rows: &[T],
    json: bool,
    as_json: impl Fn(&T) -> Value,
    empty: &str,
    headings: [&str; N],
    cells: impl Fn(&T) -> [String; N],
) -> Result<(), CliError> {
    if json {
        return print_json(&rows.iter().map(as_json).collect::<Vec<_>>());
    }
    if rows.is_empty() {
        return print_line(empty);
    }
    let mut table = Table::new(&headings);
    rows.iter().for_each(|row| table.row(cells(row)));
    print_line(table.to_string().trim_end())
}

/// Prints a remark on standard error, separate from the result. Failures are ignored.
pub(crate) fn print_note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
