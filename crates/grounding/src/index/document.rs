//! A document of any format: a title, a date, and headings and paragraphs in order.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Document {
    pub(super) title: Option<String>,
    pub(super) date: Option<Date>,
    pub(super) blocks: Vec<Block>,
}

/// White space is collapsed, except in code.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Block {
    Heading {
        /// 1 is the highest.
        level: u8,
        text: String,
    },
    Paragraph(String),
}

impl Document {
    /// Ignores a blank heading. The first heading is the title of a document without a title.
    pub(super) fn push_heading(&mut self, level: u8, text: &str) {
        let text = collapse_whitespace(text);
        if !text.is_empty() {
            self.title.get_or_insert_with(|| text.clone());
            self.blocks.push(Block::Heading { level, text });
        }
    }

    /// Ignores a blank paragraph.
    pub(super) fn push_paragraph(&mut self, text: &str) {
        let text = collapse_whitespace(text);
        if !text.is_empty() {
            self.blocks.push(Block::Paragraph(text));
        }
    }

    /// For text whose line breaks matter, such as code. Ignores blank text.
    pub(super) fn push_lines(&mut self, text: &str) {
        let clean = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
        let text: String = text.chars().map(clean).collect();
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        if !lines.is_empty() {
            self.blocks.push(Block::Paragraph(lines.join("\n")));
        }
    }

    /// Blocks from the start until at least this number of bytes.
    pub(super) fn sample(&self, bytes: usize) -> String {
        let mut sample = String::new();
        for block in &self.blocks {
            if sample.len() >= bytes {
                break;
            }
            let (Block::Heading { text, .. } | Block::Paragraph(text)) = block;
            sample.push_str(text);
            sample.push('\n');
        }
        sample
    }
}

/// Replaces each run of white space or control characters with one space, and trims the ends.
pub(super) fn collapse_whitespace(text: &str) -> String {
    let mut collapsed = String::with_capacity(text.len());
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !collapsed.is_empty() {
            collapsed.push(' ');
        }
        collapsed.push_str(word);
    }
    collapsed
}
