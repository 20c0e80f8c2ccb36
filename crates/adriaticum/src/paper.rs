//! How figures, times and tables look on a terminal.

use std::time::{Duration, UNIX_EPOCH};

/// A table with aligned columns, the numeric ones to the right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A heading that begins with `>` belongs to a column of numbers.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let rows = vec![headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect()];
        Self { rows, right }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..self.right.len()).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&self.right).zip(&widths).map(|((cell, &right), &width)| {
                if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// A time in milliseconds since 1970, to the second.
pub(crate) fn time(millis: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(millis)).to_string()
}

/// A number in groups of three digits.
pub(crate) fn number(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// A number, or a dash where there is none.
pub(crate) fn maybe(value: Option<u64>) -> String {
    value.map_or_else(|| "–".into(), number)
}

/// A duration with the unit that suits it.
pub(crate) fn latency(duration: Duration) -> String {
    match duration.as_micros() as f64 {
        micros if micros < 1_000.0 => format!("{micros:.0} µs"),
        micros if micros < 1_000_000.0 => format!("{:.1} ms", micros / 1_000.0),
        micros => format!("{:.2} s", micros / 1_000_000.0),
    }
}

/// A score of the scorer: four places are plenty, and read better.
pub(crate) fn score(score: f32) -> f64 {
    (f64::from(score) * 10_000.0).round() / 10_000.0
}

/// So many of something; English adds an s to more than one.
pub(crate) fn count(of: u64, what: &str) -> String {
    format!("{} {what}{}", number(of), if of == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_columns_aligned() {
        assert_eq!([number(0), number(999), number(1000), number(1234567)], ["0", "999", "1,000", "1,234,567"]);
        let mut table = Table::new(&["NAME", ">COUNT"]);
        table.row(["é".into(), "7".into()]);
        table.row(["longer".into(), "1,000".into()]);
        assert_eq!(table.to_string(), "NAME    COUNT\né           7\nlonger  1,000\n");
    }
}
