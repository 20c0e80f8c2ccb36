//! Plain text: blank lines separate paragraphs. It has no title.

use crate::cjk::is_cjk;
use crate::index::document::Document;

pub(super) fn read(text: &str) -> Document {
    let mut document = Document::default();
    for paragraph in paragraphs(text) {
        document.push_paragraph(&paragraph);
    }
    document
}

/// The lines of each paragraph are joined.
pub(super) fn paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    // A form feed ends a page.
    for line in text.split(['\n', '\r', '\u{c}']) {
        match (line.trim(), paragraphs.last_mut()) {
            ("", Some(last)) if !last.is_empty() => paragraphs.push(String::new()),
            (line, Some(last)) => join(last, line),
            (_, None) => (),
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// Adds a line to a paragraph. Hyphenated words are joined, and Chinese and Japanese lines are joined without a space.
fn join(paragraph: &mut String, line: &str) {
    let first = line.chars().next();
    let mut end = paragraph.chars().rev();
    match (end.next(), first) {
        (Some('-' | '\u{2010}'), Some(first))
            if first.is_lowercase() && end.next().is_some_and(char::is_alphabetic) =>
        {
            paragraph.pop();
        }
        (Some(last), Some(first)) if is_cjk(last) && is_cjk(first) => (),
        (Some('。' | '、' | '，'), Some(_)) | (None, _) => (),
        _ => paragraph.push(' '),
    }
    paragraph.push_str(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_separate_paragraphs() {
        for (text, expected) in [
            ("one\ntwo\n\n  three  \r\n\r\n\r\nfour", &["one two", "three", "four"][..]),
            ("a divi-\nded word, a real-\nLife one", &["a divided word, a real- Life one"]),
            ("東京は日本の\n首都です。\n人口は多い。", &["東京は日本の首都です。人口は多い。"]),
            ("page one\u{c}page two", &["page one page two"]),
            ("\n \n", &[]),
        ] {
            assert_eq!(paragraphs(text), expected, "{text}");
        }
    }
}
