//! Separates the question of a turn from its material: quoted text, code, tables, letters.

use crate::cjk::is_half_a_word;

/// A shorter quotation is a phrase, not material.
const MIN_QUOTE_WORDS: usize = 7;
/// A shorter block of prose next to a request is part of the request.
const MIN_PROSE_WORDS: usize = 25;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The question, with a placeholder for each piece of material.
    pub(crate) ask: String,
    pub(crate) material: String,
}

/// `is_instruction` decides whether the text before a colon is an instruction for the text after it.
pub(crate) fn split_material(content: &str, is_instruction: impl Fn(&str) -> bool) -> Parts {
    let mut parts = Parts::default();
    let rest = take_fenced_code(content, &mut parts.material);
    let rest = take_quotations(&rest, &mut parts.material);
    take_blocks(&rest, &mut parts);
    if let Some((before, after)) = parts.ask.split_once(": ").or_else(|| parts.ask.split_once(":\n"))
        && count_words(after) > 0
        && (is_instruction(before)
            || count_words(before) <= 12
                && count_words(after) >= MIN_PROSE_WORDS
                && !after.trim_end().ends_with(['?', '？']))
    {
        let (before, after) = (before.to_owned(), after.to_owned());
        append(&mut parts.material, &after);
        parts.ask = before + ":";
    }
    parts
}

impl Parts {
    pub(crate) fn is_material_only(&self) -> bool {
        count_words(&self.ask) == 0
    }
}

fn append(material: &mut String, piece: &str) {
    if !material.is_empty() {
        material.push('\n');
    }
    material.push_str(piece);
}

/// An estimate: a Chinese or Japanese word has about two characters.
fn count_words(text: &str) -> usize {
    let (mut words, mut half_words, mut is_within_word) = (0, 0, false);
    for character in text.chars() {
        if is_half_a_word(character) {
            half_words += 1;
            is_within_word = false;
        } else if character.is_alphanumeric() {
            words += usize::from(!is_within_word);
            is_within_word = true;
        } else if character != '\'' {
            is_within_word = false;
        }
    }
    words + half_words / 2
}

fn take_fenced_code(content: &str, material: &mut String) -> String {
    let mut pieces = content.split("```");
    let mut rest = pieces.next().unwrap_or_default().to_owned();
    while let Some(code) = pieces.next() {
        append(material, code);
        if let Some(after) = pieces.next() {
            rest.push_str(" \u{1}code ");
            rest.push_str(after);
        }
    }
    rest
}

fn take_quotations(content: &str, material: &mut String) -> String {
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
        if count_words(quoted) >= MIN_QUOTE_WORDS {
            append(material, quoted);
            rest.push_str("\u{1}quote");
        } else {
            rest.push_str(&remaining[at..at + opening.len_utf8() + end + after]);
        }
        remaining = &inside[end + after..];
    }
    rest.push_str(remaining);
    rest
}

/// Requests are short or contain a question. Long blocks next to them are material.
fn take_blocks(rest: &str, parts: &mut Parts) {
    let blocks: Vec<&str> = match rest.contains("\n\n") {
        true => rest.split("\n\n").collect(),
        false => rest.split('\n').collect(),
    };
    let blocks: Vec<&str> = blocks.into_iter().map(str::trim).filter(|block| !block.is_empty()).collect();
    let is_question = |block: &str| block.contains(['?', '？']);
    let is_long = |block: &str| block.lines().count() >= 3 || count_words(block) >= MIN_PROSE_WORDS;
    let has_request = blocks.iter().any(|block| !is_long(block) || is_question(block));
    let has_many_blocks = blocks.len() > 4;
    for (index, block) in blocks.iter().enumerate() {
        let at_edge = index == 0 || index + 1 == blocks.len();
        let is_material = blocks.len() > 1
            && has_request
            && (is_long(block) && !is_question(block) || has_many_blocks && !at_edge && !is_question(block));
        if is_material {
            append(&mut parts.material, block);
        }
        if !parts.ask.is_empty() {
            parts.ask.push('\n');
        }
        parts.ask.push_str(if is_material { "\u{1}block" } else { block });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(content: &str) -> (String, String) {
        let parts = split_material(content, |before| before.to_lowercase().contains("translate"));
        (parts.ask, parts.material)
    }

    #[track_caller]
    fn check(content: &str, ask: &str, material: &str) {
        assert_eq!(parts(content), (ask.to_owned(), material.to_owned()));
    }

    #[test]
    fn a_plain_question_has_no_material() {
        check("Who was Tesla?", "Who was Tesla?", "");
        check("", "", "");
    }

    #[test]
    fn code_between_fences_is_material() {
        check("What is wrong?\n```let x = 1;```", "What is wrong?\n\u{1}code", "let x = 1;");
        check("Fix this ```let x", "Fix this", "let x");
        check("```let x", "", "let x");
        assert!(split_material("```let x", |_| false).is_material_only());
    }

    #[test]
    fn a_long_quotation_is_material_and_a_short_one_is_not() {
        check(
            "Shorten \"one two three four five six seven\"",
            "Shorten \u{1}quote",
            "one two three four five six seven",
        );
        check("Who sang \"Let it be\"?", "Who sang \"Let it be\"?", "");
        check("an \"open end", "an \"open end", "");
    }

    #[test]
    fn text_after_the_colon_of_an_instruction_is_material() {
        check("Translate: the cat sleeps", "Translate:", "the cat sleeps");
        check("One thing: who was Tesla?", "One thing: who was Tesla?", "");
    }

    #[test]
    fn a_long_block_next_to_a_short_one_is_material() {
        let letter = "word ".repeat(30);
        let (ask, material) = parts(&format!("Is this polite?\n\n{letter}"));
        assert_eq!((ask.as_str(), material.as_str()), ("Is this polite?\n\u{1}block", letter.trim()));
    }

    #[test]
    fn material_alone_is_the_request() {
        let letter = "word ".repeat(30);
        assert_eq!(parts(&letter).0, letter.trim());
    }
}
