//! HTML, parsed as browsers do, without scripts, styles, navigation and hidden elements.

use ego_tree::iter::Edge;
use encoding_rs::Encoding;
use scraper::node::Element;
use scraper::{Html, Node};

use crate::date::parse_date;
use crate::index::document::{Document, collapse_whitespace};

pub(super) fn read(text: &str) -> Document {
    let page = Html::parse_document(text);
    let mut document = Document::default();
    let mut inline = String::new();
    let mut in_title = false;
    // Depth inside an ignored element.
    let mut ignored = 0_usize;
    // Not recursive, because a page may be nested deeper than the stack.
    for edge in page.tree.root().traverse() {
        match edge {
            Edge::Open(node) => match node.value() {
                Node::Element(element) if ignored > 0 || is_ignored(element) => ignored += 1,
                Node::Element(element) => match element.name() {
                    "title" => in_title = document.title.is_none(),
                    "meta" => document.date = document.date.or_else(|| publication_date(element)),
                    "br" | "td" | "th" | "img" => inline.push(' '),
                    name if BLOCKS.contains(&name) => document.push_paragraph(&std::mem::take(&mut inline)),
                    _ => (),
                },
                Node::Text(text) if ignored == 0 => inline.push_str(text),
                _ => (),
            },
            Edge::Close(node) => {
                let Node::Element(element) = node.value() else { continue };
                if ignored > 0 {
                    ignored -= 1;
                    continue;
                }
                match element.name() {
                    "title" if in_title => {
                        document.title =
                            Some(collapse_whitespace(&std::mem::take(&mut inline))).filter(|title| !title.is_empty());
                        in_title = false;
                    }
                    "pre" => document.push_lines(&std::mem::take(&mut inline)),
                    // The title of an SVG.
                    "title" => inline.clear(),
                    name => match heading_level(name) {
                        Some(level) => document.push_heading(level, &std::mem::take(&mut inline)),
                        None if BLOCKS.contains(&name) => document.push_paragraph(&std::mem::take(&mut inline)),
                        None => (),
                    },
                }
            }
        }
    }
    document.push_paragraph(&inline);
    document
}

/// The encoding that the page declares.
pub(super) fn declared_charset(bytes: &[u8]) -> Option<&'static Encoding> {
    /// A declaration must be in the first kilobyte.
    const SNIFF_BYTES: usize = 1024;

    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(SNIFF_BYTES)]).to_ascii_lowercase();
    let (_, declared) = head.split_once("charset=")?;
    let label = declared.trim_start_matches(['"', '\'']).split(['"', '\'', ' ', ';', '>', '/']).next()?;
    Encoding::for_label(label.as_bytes())
}

fn is_ignored(element: &Element) -> bool {
    matches!(
        element.name(),
        "script" | "style" | "noscript" | "template" | "nav" | "svg" | "iframe" | "object" | "select" | "button"
    ) || element.attr("hidden").is_some()
        || element.attr("aria-hidden") == Some("true")
        || element.attr("role") == Some("navigation")
}

/// Elements that begin a new paragraph.
const BLOCKS: [&str; 39] = [
    "address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hr", "html", "li",
    "main", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr", "ul",
];

fn heading_level(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [b'h', level @ b'1'..=b'6'] => Some(level - b'0'),
        _ => None,
    }
}

fn publication_date(element: &Element) -> Option<jiff::civil::Date> {
    let name = element.attr("property").or(element.attr("name")).or(element.attr("itemprop"))?;
    matches!(name.to_ascii_lowercase().as_str(), "article:published_time" | "date" | "dc.date" | "datepublished")
        .then(|| element.attr("content").and_then(parse_date))?
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;
    use crate::index::document::Block;

    fn texts(document: &Document) -> Vec<&str> {
        document.blocks.iter().map(|(Block::Heading { text, .. } | Block::Paragraph(text))| text.as_str()).collect()
    }

    #[test]
    fn only_the_text_of_a_page_is_read() {
        let page = read(
            "<!doctype html><html><head><title> A &amp; B </title><style>p{}</style>\
             <meta property='article:published_time' content='2022-03-04T05:06:07Z'></head><body>\
             <nav><ul><li>Home<li>News</ul></nav><h1>Head&shy;ing</h1><p>One<br>two&nbsp;&euro;<p>three <b>bo</b>ld\
             <script>var a = '<p>no</p>';</script><div hidden>no</div><ul><li>x<li>y</ul>\
             <table><tr><td>a<td>b</table><pre>if x:\n  <b>y</b>\n\n</pre><svg><title>no</title></svg></body></html>",
        );
        assert_eq!(page.title.as_deref(), Some("A & B"));
        assert_eq!(page.date, Some(date(2022, 3, 4)));
        assert_eq!(texts(&page), ["Head\u{ad}ing", "One two €", "three bold", "x", "y", "a b", "if x:\n  y"]);
    }

    #[test]
    fn the_first_heading_is_the_title_of_a_page_without_one() {
        assert_eq!(read("<h2>Sub</h2><p>x").title.as_deref(), Some("Sub"));
        assert_eq!(read("<title></title><h1>Main</h1>").title.as_deref(), Some("Main"));
    }

    #[test]
    fn a_page_nested_very_deeply_is_read() {
        let deep = format!("{}core{}", "<div>".repeat(5_000), "</div>".repeat(5_000));
        assert_eq!(texts(&read(&deep)), ["core"]);
    }

    #[test]
    fn the_declared_charset_is_found() {
        for (head, expected) in [
            ("<meta charset=\"windows-1250\">", Some(encoding_rs::WINDOWS_1250)),
            ("<meta http-equiv=content-type content='text/html; charset=iso-8859-2'>", Some(encoding_rs::ISO_8859_2)),
            ("<META CHARSET=utf-8>", Some(encoding_rs::UTF_8)),
            ("<meta charset=nonsense>", None),
            ("<p>none", None),
        ] {
            assert_eq!(declared_charset(head.as_bytes()), expected, "{head}");
        }
    }
}
