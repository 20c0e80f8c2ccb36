//! CSV for programs: no digit groups; unmeasured values are empty.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

/// Writes rows, after a header if there is one. The header is separate because there may be no row to derive it from, and
/// because a long export is written in parts.
pub fn write_csv<Row: Serialize>(
    out: impl Write,
    header: Option<&[&str]>,
    rows: impl IntoIterator<Item = Row>,
) -> io::Result<()> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(out);
    if let Some(columns) = header {
        writer.write_record(columns).map_err(io_error)?;
    }
    rows.into_iter().try_for_each(|row| writer.serialize(row)).map_err(io_error)?;
    writer.flush()
}

/// Keeps the kind of an I/O error, so that a closed pipe is recognized; the conversion of `csv` loses it.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

/// The members of a row that are columns: `null` is empty, and no text is a formula.
pub fn csv_cells(row: &Value, columns: &[&str]) -> Vec<String> {
    let cell = |column: &&str| match &row[*column] {
        Value::Null => String::new(),
        Value::String(text) => spreadsheet_safe(text),
        other => other.to_string(),
    };
    columns.iter().map(cell).collect()
}

/// Text that no spreadsheet interprets as a formula.
pub fn spreadsheet_safe(text: &str) -> String {
    match text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    }
}
