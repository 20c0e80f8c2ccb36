//! JSON arrays that are written in parts, one row per line.

use serde::Serialize;

/// An array that is written in several parts, because an export may be larger than memory.
#[derive(Debug, Default)]
pub struct JsonArray {
    has_rows: bool,
}

impl JsonArray {
    /// The text of the next rows, with the bracket or comma before them.
    pub fn rows<Row: Serialize>(&mut self, rows: impl IntoIterator<Item = Row>) -> serde_json::Result<Vec<u8>> {
        let mut text = Vec::new();
        for row in rows {
            text.extend_from_slice(if self.has_rows { b",\n" } else { b"[\n" });
            self.has_rows = true;
            serde_json::to_writer(&mut text, &row)?;
        }
        Ok(text)
    }

    pub fn end(self) -> &'static str {
        if self.has_rows { "\n]\n" } else { "[]\n" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_one_array() {
        let mut array = JsonArray::default();
        let mut text = array.rows([1, 2]).unwrap();
        text.extend(array.rows::<u8>([]).unwrap());
        text.extend(array.rows([3]).unwrap());
        text.extend(array.end().as_bytes());
        assert_eq!(serde_json::from_slice::<Vec<u8>>(&text).unwrap(), [1, 2, 3]);
        assert_eq!(JsonArray::default().end(), "[]\n");
    }
}
