//! A document as every format is read into: a title, a date, and headings and paragraphs in their order.

use jiff::civil::Date;

/// What was read out of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Document {
    /// What it calls itself, if it does.
    pub(super) title: Option<String>,
    /// When it says it was written.
    pub(super) date: Option<Date>,
    pub(super) blocks: Vec<Block>,
}

/// One piece of a document's text, with single spaces except in code.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block {
    Heading {
        /// 1 for a chapter, more for what stands below it.
        level: u8,
        text: String,
    },
    Paragraph(String),
}

impl Document {
    /// Adds a heading, unless there is nothing in it. The first one is the title of a document that has none.
    pub(super) fn heading(&mut self, level: u8, text: &str) {
        let text = squeeze(text);
        if !text.is_empty() {
            self.title.get_or_insert_with(|| text.clone());
            self.blocks.push(Block::Heading { level, text });
        }
    }

    /// Adds a paragraph, unless there is nothing in it.
    pub(super) fn paragraph(&mut self, text: &str) {
        let text = squeeze(text);
        if !text.is_empty() {
            self.blocks.push(Block::Paragraph(text));
        }
    }

    /// Adds text whose lines mean something, such as code, unless there is nothing in it.
    pub(super) fn lines(&mut self, text: &str) {
        let clean = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
        let text: String = text.chars().map(clean).collect();
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        if !lines.is_empty() {
            self.blocks.push(Block::Paragraph(lines.join("\n")));
        }
    }

    /// About so many bytes of its text, to guess its language by.
    pub(super) fn beginning(&self, bytes: usize) -> String {
        let mut beginning = String::new();
        for block in &self.blocks {
            if beginning.len() >= bytes {
                break;
            }
            let (Block::Heading { text, .. } | Block::Paragraph(text)) = block;
            beginning.push_str(text);
            beginning.push('\n');
        }
        beginning
    }
}

/// Every stretch of white space as one space, none at the ends; control characters are white space, too.
pub(super) fn squeeze(text: &str) -> String {
    let mut squeezed = String::with_capacity(text.len());
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !squeezed.is_empty() {
            squeezed.push(' ');
        }
        squeezed.push_str(word);
    }
    squeezed
}
