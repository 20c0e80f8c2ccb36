//! The text of HTML as a browser would show it, in one pass from left to right.
//!
//! Search results are parts of untrusted pages. So there is no tree, no nesting and no recursion: tags are dropped in
//! place, and the time is linear in the length for any input.

use markup5ever::data::{C1_REPLACEMENTS, NAMED_ENTITIES};

/// Longer than any name in HTML.
const MAX_NAME_BYTES: usize = 32;
/// Never shown, up to their end tag.
const HIDDEN: [&str; 7] = ["iframe", "noembed", "noframes", "noscript", "script", "style", "template"];
/// Words continue across these tags; other tags separate words.
const INLINE: [&str; 18] = [
    "a", "abbr", "b", "cite", "code", "em", "font", "i", "kbd", "mark", "q", "s", "small", "span", "strong", "tt", "u",
    "var",
];

pub(super) fn visible_text(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find(['<', '&']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        rest = match rest.as_bytes()[0] {
            b'<' => skip_markup(rest, &mut text),
            _ => decode_reference(rest, &mut text),
        };
    }
    text.push_str(rest);
    text
}

/// `html` begins with `<`. Returns the text after the tag or comment; empty if it has no end.
fn skip_markup<'a>(html: &'a str, text: &mut String) -> &'a str {
    if html.starts_with("<!--") {
        // `<!-->` is a whole comment.
        return after(&html[2..], "-->");
    }
    let is_end_tag = html[1..].starts_with('/');
    let inside = &html[1 + usize::from(is_end_tag)..];
    match inside.bytes().next() {
        Some(first) if first.is_ascii_alphabetic() => {}
        Some(b'!' | b'?') if !is_end_tag => return after(inside, ">"),
        Some(_) if is_end_tag => return after(inside, ">"),
        _ => {
            text.push('<');
            return inside;
        }
    }
    let name_end = inside.find(|c: char| c.is_ascii_whitespace() || c == '/' || c == '>').unwrap_or(inside.len());
    let (name, attributes) = inside.split_at(name_end);
    let is_in = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let rest = after_attributes(attributes);
    if !is_end_tag && is_in(&HIDDEN) {
        return before_end_tag(rest, name);
    }
    if !is_in(&INLINE) {
        text.push(' ');
    }
    rest
}

fn after<'a>(html: &'a str, end: &str) -> &'a str {
    html.find(end).map_or("", |at| &html[at + end.len()..])
}

/// A `>` within quotes does not end a tag.
fn after_attributes(attributes: &str) -> &str {
    let bytes = attributes.as_bytes();
    let (mut at, mut may_quote) = (0, false);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'>' => return &attributes[at + 1..],
            b'"' | b'\'' if may_quote => match bytes[at + 1..].iter().position(|other| other == byte) {
                Some(length) => at += length + 1,
                None => return "",
            },
            _ => {}
        }
        // A quotation mark begins a value only directly after a `=`.
        may_quote = *byte == b'=' || may_quote && byte.is_ascii_whitespace();
        at += 1;
    }
    ""
}

/// The rest from the end tag of this name; empty if there is none.
fn before_end_tag<'a>(html: &'a str, name: &str) -> &'a str {
    let mut rest = html;
    while let Some(at) = rest.find("</") {
        let end = &rest[at + 2..];
        let is_named = end.get(..name.len()).is_some_and(|other| other.eq_ignore_ascii_case(name));
        if is_named && !end[name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return &rest[at..];
        }
        rest = end;
    }
    ""
}

/// `html` begins with `&`. Adds the character that it refers to, or the `&` itself. Returns the rest.
fn decode_reference<'a>(html: &'a str, text: &mut String) -> &'a str {
    let inside = &html[1..];
    if let Some(number) = inside.strip_prefix('#') {
        let (radix, digits) = match number.strip_prefix(['x', 'X']) {
            Some(digits) => (16, digits),
            None => (10, number),
        };
        let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
        if end > 0 {
            text.push(numbered(u32::from_str_radix(&digits[..end], radix).unwrap_or(u32::MAX)));
            return digits[end..].strip_prefix(';').unwrap_or(&digits[end..]);
        }
    } else {
        let end = inside.bytes().take(MAX_NAME_BYTES).take_while(u8::is_ascii_alphanumeric).count();
        // Some names are valid without a semicolon.
        let whole = end + usize::from(inside[end..].starts_with(';'));
        for end in [whole, end] {
            if let Some((first, second)) = NAMED_ENTITIES.get(&inside[..end]).filter(|(first, _)| *first != 0) {
                text.extend([*first, *second].into_iter().filter(|code| *code != 0).filter_map(char::from_u32));
                return &inside[end..];
            }
        }
    }
    text.push('&');
    inside
}

fn numbered(code: u32) -> char {
    let replaced = code.checked_sub(0x80).and_then(|at| C1_REPLACEMENTS.get(at as usize).copied().flatten());
    replaced.or_else(|| char::from_u32(code).filter(|c| *c != '\0')).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_a_browser_shows_is_kept() {
        for (html, expected) in [
            ("One<br>two <b>bo</b>ld<p>three</p>four", "One two bold three four"),
            (
                "a &lt; b &amp;&amp; c &eacute;&#233;&#xE9; &notanentity; &copy 2024 &#128; &#0;&#x110000;",
                "a < b && c ééé &notanentity; © 2024 € \u{fffd}\u{fffd}",
            ),
            ("x<!-- <b>no</b> -->y<!-->z<!doctype html>!<?php no ?>", "xyz!"),
            (
                "a<script>var x = '<p>no</p>';</SCRIPT >b<style>no</styles></style>c<template><p>no</p></template>d",
                "a b c d",
            ),
            ("<a title='a > b' href=\"x>y\">link</a> <img alt=it's> more", "link   more"),
            ("1 < 2 <3 a<b", "1 < 2 <3 a"),
            ("cut <a href=\"http://", "cut "),
            ("cut <!-- off", "cut "),
            ("cut <script> off </scrip>", "cut "),
            ("</ no>text</>", "text"),
            ("&", "&"),
            ("&#;&#x;&;", "&#;&#x;&;"),
        ] {
            assert_eq!(visible_text(html), expected, "{html}");
        }
    }
}
