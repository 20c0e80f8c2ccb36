//! Formats of numbers, durations, times, key states and CSV rows, shared by the console and the command line so that a
//! figure looks the same in both. HTML and tables are not here.

mod audit;
mod csv;
mod groups;
mod json;
mod limits;
mod money;
mod numbers;
mod times;
mod usage;

pub use audit::{AUDIT_COLUMNS, Phrase, Sentence, audit_row, sentence};
pub use csv::{csv_cells, spreadsheet_safe, write_csv};
pub use groups::{Group, GroupRow, NO_ONE, NO_PROJECT, group_report};
pub use json::JsonArray;
pub use limits::{limit, whose};
pub use money::{amount, money};
pub use numbers::{
    count, duration, long_duration, measured_of, micros, micros_of, number, number_or_dash, percent, score,
    short_number,
};
pub use times::{
    date, date_time, exact_time, month, parse_date, parse_time, rfc3339_micros, rfc3339_millis, rfc3339_seconds,
    short_time, slice_name,
};
pub use usage::{REQUEST_COLUMNS, TOKEN_COLUMNS, key_state, outcome, request_row, token_sums};
