//! How numbers, durations, times, key states and CSV rows are written. The console and the command line both write them
//! with this crate, so that the same figure reads the same in both. HTML and tables are theirs.

mod csv;
mod limits;
mod numbers;
mod times;
mod usage;

pub use csv::{spreadsheet_safe, write_csv};
pub use limits::{limit, whose};
pub use numbers::{count, duration, measured_of, micros, number, number_or_dash, percent, score, short_number};
pub use times::{
    date, exact_time, parse_date, rfc3339_micros, rfc3339_millis, rfc3339_seconds, short_time, slice_name,
};
pub use usage::{RequestRow, TokenSums, key_state, outcome};
