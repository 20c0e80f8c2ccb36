//! Markdown. Of YAML or TOML front matter, only `title` and `date` are read.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::html;
use crate::date::parse_date;
use crate::index::document::{Document, collapse_whitespace};

pub(super) fn read(text: &str) -> Document {
    let mut document = Document::default();
    let mut inline = String::new();
    for event in Parser::new_ext(text, options()) {
        match event {
            Event::End(TagEnd::MetadataBlock(_)) => read_front_matter(&mut document, &std::mem::take(&mut inline)),
            Event::Text(text) | Event::Code(text) | Event::InlineMath(text) | Event::DisplayMath(text) => {
                inline.push_str(&text);
            }
            Event::SoftBreak | Event::HardBreak | Event::Rule => inline.push(' '),
            // Inline tags are dropped; their text is a separate event. A block of HTML is parsed as a page.
            Event::Html(block) => inline.push_str(&block),
            Event::End(TagEnd::HtmlBlock) => {
                let block = html::read(&std::mem::take(&mut inline));
                document.blocks.extend(block.blocks);
            }
            Event::End(TagEnd::Heading(level)) => document.push_heading(level as u8, &std::mem::take(&mut inline)),
            Event::End(TagEnd::CodeBlock) => document.push_lines(&std::mem::take(&mut inline)),
            Event::End(TagEnd::TableCell) => inline.push_str(" | "),
            Event::Start(tag) if is_block(&tag) => document.push_paragraph(&std::mem::take(&mut inline)),
            Event::End(end) if ends_block(end) => document.push_paragraph(&std::mem::take(&mut inline)),
            _ => (),
        }
    }
    document.push_paragraph(&inline);
    document
}

fn options() -> Options {
    Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_HEADING_ATTRIBUTES
        | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS
        | Options::ENABLE_PLUSES_DELIMITED_METADATA_BLOCKS
}

fn is_block(tag: &Tag<'_>) -> bool {
    matches!(tag, Tag::Paragraph | Tag::Item | Tag::CodeBlock(_) | Tag::List(_) | Tag::Table(_) | Tag::HtmlBlock)
}

fn ends_block(end: TagEnd) -> bool {
    matches!(end, TagEnd::Paragraph | TagEnd::Item | TagEnd::TableRow | TagEnd::TableHead | TagEnd::Table)
}

fn read_front_matter(document: &mut Document, text: &str) {
    for line in text.lines() {
        let Some((name, value)) = line.split_once([':', '=']) else { continue };
        let value = collapse_whitespace(value.trim().trim_matches(['"', '\'']));
        match name.trim() {
            "title" if !value.is_empty() => document.title = Some(value),
            "date" => document.date = parse_date(&value),
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;
    use crate::index::document::Block;

    fn outline(document: &Document) -> Vec<String> {
        let line = |block: &Block| match block {
            Block::Heading { level, text } => format!("{level} {text}"),
            Block::Paragraph(text) => text.clone(),
        };
        document.blocks.iter().map(line).collect()
    }

    #[test]
    fn headings_are_distinguished_from_paragraphs() {
        let read = read(
            "# Pumps & *valves*\n\nFirst `line`\nsecond.\n\n## Parts ##\n\n- one\n- two\n  more\n\n1. three\n\n\
             | a | b |\n|---|---|\n| c | d |\n\n```sh\nmake\n  it\n```\n\n<div><b>raw</b> text<script>no()</script></div>\n\n\
             A [link](http://x.example/) and ![a picture](p.png), a <b>tag</b>.\n",
        );
        assert_eq!(read.title.as_deref(), Some("Pumps & valves"));
        assert_eq!(
            outline(&read),
            [
                "1 Pumps & valves", "First line second.", "2 Parts", "one", "two more", "three", "a | b |", "c | d |",
                "make\n  it", "raw text", "A link and a picture, a tag.",
            ]
        );
    }

    #[test]
    fn front_matter_has_title_and_date() {
        let yaml = read("---\ntitle: \"The: title\"\ndate: 2024-05-01 10:00\ntags: [a]\n---\n# Another\n\ntext\n");
        assert_eq!((yaml.title.as_deref(), yaml.date), (Some("The: title"), Some(date(2024, 5, 1))));
        assert_eq!(outline(&yaml), ["1 Another", "text"]);
        let toml = read("+++\ntitle = 'Named'\ndate = 2023-01-02\n+++\n\ntext\n");
        assert_eq!((toml.title.as_deref(), toml.date), (Some("Named"), Some(date(2023, 1, 2))));
        assert_eq!(read("plain").title, None);
    }
}
