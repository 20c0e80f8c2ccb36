//! What a turn asks, and what it brings along: quoted text, code, tables, letters, whatever is to be worked on.

use crate::cjk::is_half_a_word;

/// Words from which a quotation is more than a phrase.
const QUOTED: usize = 7;
/// Words from which a block of plain prose beside a request is what the request is about.
const PROSE: usize = 25;

/// A turn, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// What is asked, with a mark in place of each piece of material.
    pub(crate) ask: String,
    /// What was brought along.
    pub(crate) material: String,
}

/// Takes a turn apart. `transforms` says whether what stands before a colon tells to work on what stands after it.
pub(crate) fn split(content: &str, transforms: impl Fn(&str) -> bool) -> Parts {
    let mut parts = Parts::default();
    let rest = unfenced(content, &mut parts.material);
    let rest = unquoted(&rest, &mut parts.material);
    blocks(&rest, &mut parts);
    if let Some((before, after)) = parts.ask.split_once(": ").or_else(|| parts.ask.split_once(":\n"))
        && size(after) > 0
        && (transforms(before)
            || size(before) <= 12 && size(after) >= PROSE && !after.trim_end().ends_with(['?', '？']))
    {
        let (before, after) = (before.to_owned(), after.to_owned());
        keep(&mut parts.material, &after);
        parts.ask = before + ":";
    }
    parts
}

impl Parts {
    /// Whether there is material and nothing else.
    pub(crate) fn asks_nothing(&self) -> bool {
        size(&self.ask) == 0
    }
}

fn keep(material: &mut String, piece: &str) {
    if !material.is_empty() {
        material.push('\n');
    }
    material.push_str(piece);
}

/// Words, roughly: a Chinese or Japanese word has about two characters.
fn size(text: &str) -> usize {
    let (mut words, mut ideographs, mut within) = (0, 0, false);
    for character in text.chars() {
        if is_half_a_word(character) {
            ideographs += 1;
            within = false;
        } else if character.is_alphanumeric() {
            words += usize::from(!within);
            within = true;
        } else if character != '\'' {
            within = false;
        }
    }
    words + ideographs / 2
}

fn unfenced(content: &str, material: &mut String) -> String {
    let mut pieces = content.split("```");
    let mut rest = pieces.next().unwrap_or_default().to_owned();
    while let Some(code) = pieces.next() {
        keep(material, code);
        if let Some(after) = pieces.next() {
            rest.push_str(" \u{1}code ");
            rest.push_str(after);
        }
    }
    rest
}

fn unquoted(content: &str, material: &mut String) -> String {
    const PAIRS: [(char, char); 6] = [('"', '"'), ('“', '”'), ('„', '“'), ('«', '»'), ('「', '」'), ('『', '』')];
    let mut rest = String::with_capacity(content.len());
    let mut remaining = content;
    while let Some((at, opening, closing)) = remaining
        .char_indices()
        .find_map(|(at, c)| PAIRS.iter().find(|pair| pair.0 == c).map(|pair| (at, pair.0, pair.1)))
    {
        let inside = &remaining[at + opening.len_utf8()..];
        let Some(end) = inside.find(closing).or_else(|| inside.find('”')) else { break };
        let quoted = &inside[..end];
        let after = inside[end..].chars().next().map_or(0, char::len_utf8);
        rest.push_str(&remaining[..at]);
        if size(quoted) >= QUOTED {
            keep(material, quoted);
            rest.push_str("\u{1}quote");
        } else {
            rest.push_str(&remaining[at..at + opening.len_utf8() + end + after]);
        }
        remaining = &inside[end + after..];
    }
    rest.push_str(remaining);
    rest
}

/// Blocks of lines: requests are short or ask, what is long, or many lines, was brought along.
fn blocks(rest: &str, parts: &mut Parts) {
    let blocks: Vec<&str> = match rest.contains("\n\n") {
        true => rest.split("\n\n").collect(),
        false => rest.split('\n').collect(),
    };
    let blocks: Vec<&str> = blocks.into_iter().map(str::trim).filter(|block| !block.is_empty()).collect();
    let asks = |block: &str| block.contains(['?', '？']);
    let is_long = |block: &str| block.lines().count() >= 3 || size(block) >= PROSE;
    let short = blocks.iter().any(|block| !is_long(block) || asks(block));
    let many = blocks.len() > 4;
    for (index, block) in blocks.iter().enumerate() {
        let at_edge = index == 0 || index + 1 == blocks.len();
        let brought = blocks.len() > 1 && short && (is_long(block) && !asks(block) || many && !at_edge && !asks(block));
        if brought {
            keep(&mut parts.material, block);
        }
        if !parts.ask.is_empty() {
            parts.ask.push('\n');
        }
        parts.ask.push_str(if brought { "\u{1}block" } else { block });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(content: &str) -> (String, String) {
        let parts = split(content, |before| before.to_lowercase().contains("translate"));
        (parts.ask, parts.material)
    }

    #[track_caller]
    fn check(content: &str, ask: &str, material: &str) {
        assert_eq!(parts(content), (ask.to_owned(), material.to_owned()));
    }

    #[test]
    fn a_plain_question_brings_nothing() {
        check("Who was Tesla?", "Who was Tesla?", "");
        check("", "", "");
    }

    #[test]
    fn code_between_fences_is_material() {
        check("What is wrong?\n```let x = 1;```", "What is wrong?\n\u{1}code", "let x = 1;");
        check("Fix this ```let x", "Fix this", "let x");
        check("```let x", "", "let x");
        assert!(split("```let x", |_| false).asks_nothing());
    }

    #[test]
    fn a_long_quotation_is_material_a_short_one_is_not() {
        check(
            "Shorten \"one two three four five six seven\"",
            "Shorten \u{1}quote",
            "one two three four five six seven",
        );
        check("Who sang \"Let it be\"?", "Who sang \"Let it be\"?", "");
        check("an \"open end", "an \"open end", "");
    }

    #[test]
    fn what_is_to_be_worked_on_stands_behind_the_colon() {
        check("Translate: the cat sleeps", "Translate:", "the cat sleeps");
        check("One thing: who was Tesla?", "One thing: who was Tesla?", "");
    }

    #[test]
    fn a_long_block_beside_a_short_one_is_material() {
        let letter = "word ".repeat(30);
        let (ask, material) = parts(&format!("Is this polite?\n\n{letter}"));
        assert_eq!((ask.as_str(), material.as_str()), ("Is this polite?\n\u{1}block", letter.trim()));
    }

    #[test]
    fn nothing_but_material_is_the_request_itself() {
        let letter = "word ".repeat(30);
        assert_eq!(parts(&letter).0, letter.trim());
    }
}
