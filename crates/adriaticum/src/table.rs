//! A table on a terminal: columns aligned, numbers to the right.

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

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["NAME", ">COUNT"]);
        table.row(["é".into(), "7".into()]);
        table.row(["longer".into(), "1,000".into()]);
        assert_eq!(table.to_string(), "NAME    COUNT\né           7\nlonger  1,000\n");
    }
}
