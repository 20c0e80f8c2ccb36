//! Fuzzes documents: any file becomes text of bounded size or is skipped, and reaches the program unchanged. (The child
//! process limits memory and time: `server`.)

use std::time::Duration;

use fuzzer::{Target, magnitude};

use super::message::{read_file, read_outcome, write_outcome};
use super::{Format, read_caught};
use crate::index::document::{Block, Document};

/// The shape of a read document. `max_growth`: bytes of text for each byte of the file.
fn assert_document(format: Format, input: &[u8], max_growth: usize) -> (bool, usize, u32) {
    let outcome = read_caught(format, input);
    let mut pipe = Vec::new();
    write_outcome(&mut pipe, &outcome).expect("memory takes everything");
    assert_eq!(read_outcome(&mut pipe.as_slice()).expect("a message that we wrote"), outcome);
    match outcome {
        Ok(document) => {
            let bytes: usize = document.blocks.iter().map(|block| text(block).len()).sum();
            assert!(bytes <= input.len() * max_growth + 64, "{bytes} bytes of text");
            document.blocks.iter().for_each(assert_block);
            (true, document.blocks.len().min(20), magnitude(bytes) + 32 * title_shape(&document))
        }
        Err(reason) => (false, reason.len(), 0),
    }
}

fn title_shape(document: &Document) -> u32 {
    u32::from(document.title.is_some()) + 2 * u32::from(document.date.is_some())
}

fn text(block: &Block) -> &str {
    let (Block::Heading { text, .. } | Block::Paragraph(text)) = block;
    text
}

fn assert_block(block: &Block) {
    let text = text(block);
    assert!(!text.trim().is_empty());
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}

const PAGES: [&str; 3] = [
    "<!doctype html><html><head><meta charset=utf-8><title>A &amp; B</title><meta property='article:published_time' content='2022-03-04T05:06:07Z'></head><body><nav><ul><li>Home</ul></nav><h1>Heading</h1><p>One<br>two<p>three <b>bo</b>ld<script>no()</script><table><tr><td>a<td>b</table><pre>x\n  y</pre></body></html>",
    "<meta charset=\"windows-1250\"><div hidden>no</div><h2>Sub</h2><svg><title>no</title></svg><select><option>no</select>text",
    "<p>plain &eacute; &#x1F600; &lt;tag&gt;",
];
const MARKDOWN: [&str; 3] = [
    "---\ntitle: \"The: title\"\ndate: 2024-05-01 10:00\n---\n# Heading *one*\n\nFirst `line`\nsecond.\n\n- one\n  - two\n\n1. three\n\n| a | b |\n|---|---|\n| c | d |\n\n```sh\nmake\n```\n\n<div><b>raw</b></div>\n\nA [link](http://x.example/) and ![p](p.png)[^1].\n\n[^1]: note\n",
    "+++\ntitle = 'Named'\n+++\n\n> quote\n>> deeper\n\nterm ~~gone~~ **bold _both_**\n\n- [x] done\n\n***\n",
    "Setext\n===\n\n    code\n\n<!-- comment -->\n\n<https://a.example> &copy; \\* \n",
];
const MARKS: [&str; 20] = [
    "# ", "\n\n", "```", "|", "---\n", "<div>", "</div>", "<b a=1>", "<table>", "<p>", "[", "](", "![", "> ", "- ",
    "*", "_", "&amp;", "\u{feff}", "[^1]:",
];

#[test]
fn html() {
    let target = Target::new("HTML").corpus(PAGES).dictionary(MARKS).max_bytes(4 * 1024);
    target.max_time(Duration::from_secs(20)).run(|input| assert_document(Format::Html, input, 4));
}

#[test]
fn markdown() {
    let target = Target::new("Markdown").corpus(MARKDOWN).dictionary(MARKS).max_bytes(4 * 1024);
    target.max_time(Duration::from_secs(20)).run(|input| assert_document(Format::Markdown, input, 6));
}

#[test]
fn text_in_any_encoding() {
    let utf16 = |text: &str| -> Vec<u8> {
        [0xFF, 0xFE].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
    };
    let corpus = [
        "one\ntwo\n\nthree divi-\nded\u{c}page\r\n".as_bytes().to_vec(),
        "東京は日本の\n首都です。čaj".as_bytes().to_vec(),
        b"caf\xE9 \x80 old".to_vec(),
        utf16("čaj in UTF-16\n\nmore"),
        b"\xEF\xBB\xBFwith a mark".to_vec(),
    ];
    Target::new("text encodings").corpus(corpus).dictionary(["\u{feff}", "-\n", "\n\n", "\u{0}"]).linear().run(
        |input| {
            let shape = assert_document(Format::Text, input, 4);
            let decoded = super::decode::decode(input, None);
            if let (Ok(decoded), Ok(text)) = (&decoded, std::str::from_utf8(input))
                && encoding_rs::Encoding::for_bom(input).is_none()
            {
                assert_eq!(*decoded, text, "UTF-8 is not changed");
            }
            (shape, decoded.is_ok())
        },
    );
}

#[test]
fn pdf() {
    let corpus = ["hello", "The compressor weighs 90 kilograms.", "(nested) \\(text\\)"].map(small_pdf);
    let words = [
        "/Filter /ASCIIHexDecode", "/Contents", "[4 0 R 4 0 R]", "/Kids [2 0 R]", "/Parent 3 0 R", "BT", "ET", "Tj",
        "TJ", "[(a) 5 (b)]", "Tf", "/F1", "Do", "q ", "Q ", "cm", "<< ", " >>", "stream", "endstream", "/Length",
        "<00ff>", "/Encrypt 6 0 R", "/ToUnicode 4 0 R",
    ];
    let target = Target::new("PDF").corpus(corpus).dictionary(words).max_bytes(4 * 1024);
    target.max_time(Duration::from_secs(20)).run(|input| assert_document(Format::Pdf, input, 400));
}

/// A minimal PDF.
fn small_pdf(line: &str) -> Vec<u8> {
    let page = format!("BT /F1 12 Tf 72 720 Td ({line}) Tj ET");
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>".to_owned(),
        format!("<< /Length {} >>\nstream\n{page}\nendstream", page.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
        "<< /Title (Title) /ModDate (D:20220304) >>".to_owned(),
    ];
    let (mut pdf, mut table) = (String::from("%PDF-1.4\n"), String::from("0000000000 65535 f \n"));
    for (n, object) in (1..).zip(objects) {
        table.push_str(&format!("{:010} 00000 n \n", pdf.len()));
        pdf.push_str(&format!("{n} 0 obj\n{object}\nendobj\n"));
    }
    let start = pdf.len();
    pdf.push_str(&format!(
        "xref\n0 7\n{table}trailer\n<< /Size 7 /Root 1 0 R /Info 6 0 R >>\nstartxref\n{start}\n%%EOF\n"
    ));
    pdf.into_bytes()
}

/// Messages that a faulty child may send to the program.
#[test]
fn messages() {
    let mut message = Vec::new();
    write_outcome(&mut message, &Err("it is late".into())).expect("memory takes everything");
    let corpus = [
        message,
        b"o\x35\0\0\0{\"Ok\":{\"title\":null,\"date\":\"2024-05-01\",\"blocks\":[]}}".to_vec(),
        b"p\x01\0\0\0x".to_vec(),
    ];
    let words = ["o", "\"Ok\"", "\"Err\"", "\"Heading\"", "{\"level\":300,\"text\":\"\"}", "\u{0}\u{0}"];
    Target::new("child messages").corpus(corpus).dictionary(words).max_bytes(2_000).run(|input| {
        let file = read_file(&mut &*input);
        let outcome = read_outcome(&mut &*input);
        (
            file.map(|file| file.map(|(_, bytes)| magnitude(bytes.len()))).ok(),
            outcome.map(|outcome| outcome.is_ok()).ok(),
        )
    });
}
