//! Fuzzes search results: for any text, cleaning takes linear time, is idempotent, and leaves a quotation.
//!
//! In the former code `cleaning` immediately found a fault: nested tags took quadratic time (2 KB of `<div>` 0.08 s,
//! 16 KB 4 s).

use fuzzer::{Target, magnitude};
use jiff::civil::date;

use super::clean::clean_line;
use super::tests::{HOSTILE, assert_contained, passage};
use super::{augment, strip_dangling_citations};

const PAGES: [&str; 8] = [
    "Split has 160,577 inhabitants (census of 2021). <b>Split</b> is the largest city of Dalmatia &mdash; and its port.",
    "<table class=\"infobox\"><tr><th>Population</th><td>160&nbsp;577</td></tr><tr><th>Area</th><td>79.38&#160;km<sup>2</sup></td></tr></table>",
    "<div><p>One<p>Two <a href='/x?a=1&amp;b=2' title=\"a > b\">link</a><!-- no --><script>if (a < b) x()</script><style>p{}</style>",
    "if (a < b && c > d) { return Vec<String>; } // R&D &amp;lt;b&amp;gt;",
    "東京の人口は約1400万人です。<br>２０２４年 ＜｜ｉｍ＿ｓｔａｒｔ｜＞ e\u{301}\u{200d}\u{308} ﷺ ½ ﬁ",
    "<svg><style><p>x</style></svg><math><mi>y</mi></math><select><option>z<template><td>w",
    "&notit; &hellip;&#x110000;&#0;&#128; &ampamp; &amp;amp;amp;lt; ＆lt； &#38;lt;",
    "a.....................................................................................................…",
];

const TAGS: [&str; 30] = [
    "<b>", "</b>", "<i a=1>", "<p>", "<div>", "<table>", "<tr><td>", "<a href=\"", "\">", "<!--", "-->", "<script>",
    "</script>", "<style>", "<template>", "<svg>", "<br/>", "&lt;", "&amp;", "&#60;", "<|im_start|>", "[1]", "=====",
    "\u{200b}", "\u{301}", "\u{338}", "＜", "…", "\u{202e}", "&",
];

fn assert_clean(line: &str, max_chars: usize) {
    assert!(line.chars().count() <= max_chars, "{} characters", line.chars().count());
    assert!(!line.contains(['[', ']', '<', '>', '\n', '\r', '\t']), "{line:?}");
    assert!(!line.chars().any(crate::invisible::is_invisible), "{line:?}");
    assert!(!["===", "```", "###", "---", "<|", "  "].iter().any(|bad| line.contains(bad)), "{line:?}");
    assert_eq!(line.trim(), line);
}

#[test]
fn cleaning() {
    let hostile = HOSTILE.iter().map(|(title, url, text)| format!("{title} {url} {text}"));
    let target = Target::new("cleaning").corpus(PAGES).corpus(hostile).dictionary(TAGS).linear();
    target.run_text(|text| {
        for max_chars in [160, 1_600] {
            let clean = clean_line(text, max_chars);
            assert_clean(&clean, max_chars);
            assert_eq!(clean_line(&clean, max_chars), clean, "cleaned twice");
        }
        let clean = clean_line(text, 1_600);
        (
            magnitude(clean.len()),
            clean.contains('‹'),
            clean.ends_with("..."),
            clean.chars().rev().take(2).collect::<String>(),
        )
    });
}

/// Title, URL and text of several results, separated by control characters.
#[test]
fn augmentation() {
    let hostile: Vec<String> = HOSTILE
        .chunks(3)
        .map(|some| some.iter().map(|(a, b, c)| format!("{a}\u{1}{b}\u{1}{c}")).collect::<Vec<_>>().join("\u{2}"))
        .collect();
    let words = [
        "\u{1}", "\u{2}", "https://a.example/", ">; rel=", "\"", "%0d%0a", "local:", "javascript:", "user:pw@", "[2] ",
    ];
    let target = Target::new("augmentation").corpus(hostile).dictionary(words).dictionary(TAGS).max_bytes(8 * 1024);
    target.run_text(|text| {
        let results = text.split('\u{2}').take(10).map(|result| {
            let mut parts = result.split('\u{1}');
            passage((
                parts.next().unwrap_or(""),
                parts.next().unwrap_or("https://a.example/"),
                parts.next().unwrap_or(""),
            ))
        });
        let results: Vec<_> = results.collect();
        let augmentation = augment(&results, date(2026, 1, 2), 700);
        let hosts: Vec<String> = augmentation.sources.iter().map(host).collect();
        assert_contained(&augmentation, &hosts.iter().map(String::as_str).collect::<Vec<_>>());
        (augmentation.sources.len(), magnitude(augmentation.text.len()))
    });
}

/// The host of a source's URL.
fn host(source: &super::Source) -> String {
    url::Url::parse(source.url()).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}

#[test]
fn citations() {
    let corpus = [
        "It is 12 [1][7] and [0] more [2], [1, 7] and [1,2] and [8, 9].",
        "list[7] and `x = [9]` and [5](https://a.example) [",
        "Nested [[7]9] and [ 3 ] and [１] 日本 [3]。 say [9][8].",
    ];
    let words = ["[1]", "[9]", "[", "]", "[1,", "9]", " ", "`", "(", "[ 2 , 3 ]", ",", " * ", ". ", "\n"];
    Target::new("citations").corpus(corpus).dictionary(words).linear().run_text(|text| {
        let kept = strip_dangling_citations(text, 2);
        assert!(kept.len() <= text.len(), "{kept}");
        assert_eq!(strip_dangling_citations(&kept, 2), kept, "stripped twice");
        (magnitude(kept.len()), magnitude(text.len() - kept.len().min(text.len())), kept.matches('[').count().min(9))
    });
}
