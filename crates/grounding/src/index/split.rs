//! Splits a document into chunks: long enough to be understood, short enough that several fit into a prompt.
//!
//! A chunk never crosses a heading. Paragraphs stay whole unless one alone is too long. Then it is split at the ends of
//! sentences, and the last sentence of a part is repeated in the next one. No word is lost. Lengths are in half words: a
//! Chinese or Japanese character is about half a word. Pure.

use super::document::Block;
use crate::cjk::is_cjk;

const MAX_CHUNK_HALF_WORDS: usize = 2 * 120;
/// A part of an overlong paragraph.
const PART_HALF_WORDS: usize = 2 * 90;
/// A longer sentence is not repeated.
const MAX_OVERLAP_HALF_WORDS: usize = 2 * 30;
/// A shorter rest of a section is added to the previous chunk.
const MIN_TAIL_HALF_WORDS: usize = 2 * 30;
/// A longer word counts as several, so that text without spaces is not one word.
const MAX_WORD_CHARS: usize = 24;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The path of headings above it, without the document's title.
    pub(super) heading: String,
    pub(super) text: String,
}

/// Headings omit the title, because every chunk is shown with it.
pub(super) fn split(title: &str, blocks: &[Block]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut path: Vec<(u8, &str)> = Vec::new();
    let mut section: Vec<&str> = Vec::new();
    // A heading without text below it becomes a separate chunk.
    let mut is_bare = false;
    for block in blocks {
        match block {
            Block::Paragraph(text) => {
                section.push(text);
                is_bare = false;
            }
            Block::Heading { level, text } => {
                end_section(&mut chunks, join(title, &path), &mut section);
                if is_bare && path.last().is_some_and(|(above, _)| above >= level) {
                    chunks.extend(take_heading(title, &mut path));
                }
                path.retain(|(above, _)| above < level);
                path.push((*level, text));
                is_bare = true;
            }
        }
    }
    end_section(&mut chunks, join(title, &path), &mut section);
    if is_bare {
        chunks.extend(take_heading(title, &mut path));
    }
    chunks
}

fn half_words(text: &str) -> usize {
    text.split_whitespace().map(half_words_of_word).sum()
}

fn half_words_of_word(word: &str) -> usize {
    let all = word.chars().count();
    let cjk = word.chars().filter(|c| is_cjk(*c)).count();
    cjk + 2 * (all - cjk).div_ceil(MAX_WORD_CHARS)
}

fn take_heading(title: &str, path: &mut Vec<(u8, &str)>) -> Option<Chunk> {
    let (_, text) = path.pop()?;
    Some(Chunk { heading: join(title, path), text: text.to_owned() })
}

fn join(title: &str, path: &[(u8, &str)]) -> String {
    path.iter().map(|(_, text)| *text).filter(|text| *text != title).collect::<Vec<_>>().join(" › ")
}

/// Packs a section's paragraphs into as few chunks as possible.
fn end_section(chunks: &mut Vec<Chunk>, heading: String, section: &mut Vec<&str>) {
    let first = chunks.len();
    let mut text = String::new();
    let mut length = 0;
    for paragraph in section.drain(..) {
        for part in parts(paragraph) {
            let more = half_words(&part);
            if length > 0 && length + more > MAX_CHUNK_HALF_WORDS {
                chunks.push(Chunk { heading: heading.clone(), text: std::mem::take(&mut text) });
                length = 0;
            }
            if length > 0 {
                text.push('\n');
            }
            text.push_str(&part);
            length += more;
        }
    }
    if length == 0 {
        return;
    }
    match chunks[first..].last_mut() {
        Some(before) if length < MIN_TAIL_HALF_WORDS => {
            before.text.push('\n');
            before.text.push_str(&text);
        }
        _ => chunks.push(Chunk { heading, text }),
    }
}

/// The paragraph, or its parts if it is too long for one chunk.
fn parts(paragraph: &str) -> Vec<String> {
    if half_words(paragraph) <= MAX_CHUNK_HALF_WORDS {
        return vec![paragraph.to_owned()];
    }
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut length = 0;
    for sentence in sentences(paragraph) {
        let more = half_words(sentence);
        if length > 0 && length + more > PART_HALF_WORDS {
            let overlap = last_sentence(&part).to_owned();
            parts.push(std::mem::replace(&mut part, overlap));
            length = half_words(&part);
        }
        part.push_str(sentence);
        length += more;
    }
    parts.push(part);
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

/// The sentence to repeat in the next part, unless it is too long.
fn last_sentence(part: &str) -> &str {
    match sentences(part).last() {
        Some(sentence) if sentence.len() < part.len() && half_words(sentence) <= MAX_OVERLAP_HALF_WORDS => sentence,
        _ => "",
    }
}

/// Sentences with the space after them. An overlong sentence is split at a space, or anywhere if there is none.
fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    let mut length = 0;
    let mut word = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map_or(text.len(), |(next, _)| *next);
        if c.is_whitespace() {
            length += half_words_of_word(&text[word..at]);
            word = next;
        }
        let before = text[..at].chars().next_back();
        let ended = match c {
            '。' | '！' | '？' => true,
            c if c.is_whitespace() => before.is_some_and(|mark| matches!(mark, '.' | '!' | '?' | '…' | ':' | ';')),
            _ => false,
        };
        let too_long = match c.is_whitespace() {
            true => length >= MAX_OVERLAP_HALF_WORDS,
            false => {
                next - word > MAX_WORD_CHARS * 8
                    && length + half_words_of_word(&text[word..next]) >= MAX_OVERLAP_HALF_WORDS
            }
        };
        if ended || too_long {
            sentences.push(&text[start..next]);
            (start, word, length) = (next, next, 0);
        }
    }
    if start < text.len() {
        sentences.push(&text[start..]);
    }
    sentences
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn paragraph(words: usize) -> Block {
        let words: Vec<String> = (0..words).map(|n| format!("w{n}{}", if n % 12 == 11 { "." } else { "" })).collect();
        Block::Paragraph(words.join(" "))
    }

    fn heading(level: u8, text: &str) -> Block {
        Block::Heading { level, text: text.to_owned() }
    }

    /// Heading and number of words of each chunk.
    fn shape(blocks: &[Block]) -> Vec<(String, usize)> {
        let shape = |chunk: Chunk| (chunk.heading, chunk.text.split_whitespace().count());
        split("Title", blocks).into_iter().map(shape).collect()
    }

    fn expect(blocks: &[Block], expected: &[(&str, usize)]) {
        let expected: Vec<_> = expected.iter().map(|(heading, words)| ((*heading).to_owned(), *words)).collect();
        assert_eq!(shape(blocks), expected);
    }

    #[test]
    fn paragraphs_are_packed_and_headings_separate() {
        expect(&[paragraph(50), paragraph(60), paragraph(70)], &[("", 110), ("", 70)]);
        expect(&[paragraph(80), paragraph(40), paragraph(60), paragraph(50)], &[("", 120), ("", 110)]);
        expect(&[paragraph(110), paragraph(20)], &[("", 130)]);
        expect(&[heading(1, "A"), paragraph(10), heading(1, "B"), paragraph(10)], &[("A", 10), ("B", 10)]);
        expect(
            &[
                heading(1, "Title"),
                paragraph(9),
                heading(2, "A"),
                heading(3, "B"),
                paragraph(8),
                heading(2, "C"),
                paragraph(7),
            ],
            &[("", 9), ("A › B", 8), ("C", 7)],
        );
    }

    #[test]
    fn a_heading_without_text_below_it_is_a_chunk() {
        expect(&[heading(1, "one two"), heading(1, "three")], &[("", 2), ("", 1)]);
        expect(&[heading(1, "A"), heading(2, "end")], &[("A", 1)]);
        expect(&[], &[]);
    }

    #[test]
    fn an_overlong_paragraph_is_split_at_sentences_with_an_overlap() {
        let chunks = split("", &[paragraph(500)]);
        assert!(chunks.len() > 2);
        for (one, next) in chunks.iter().zip(&chunks[1..]) {
            assert!(one.text.ends_with('.'), "{}", one.text);
            let last = one.text.trim_end_matches('.').rsplit(". ").next().unwrap_or_default();
            assert!(next.text.starts_with(last), "{last} / {}", next.text);
        }
    }

    #[test]
    fn text_without_spaces_is_split_too() {
        let chinese = "长城是中国古代的军事防御工程。".repeat(200);
        let digest = "0123456789abcdef".repeat(2000);
        for text in [chinese, digest] {
            let chunks = split("", &[Block::Paragraph(text)]);
            assert!(chunks.len() > 3);
            for chunk in chunks {
                assert!(
                    half_words(&chunk.text) <= MAX_CHUNK_HALF_WORDS + MIN_TAIL_HALF_WORDS,
                    "{}",
                    half_words(&chunk.text)
                );
            }
        }
    }

    fn block() -> impl Strategy<Value = Block> {
        let word = prop_oneof!["[a-zà-ž]{1,12}[.!?,]?", "[一-三ぁ-う]{1,30}。?", "[0-9.]{1,5}"];
        prop_oneof![
            (1..7_u8, prop::collection::vec(word.clone(), 1..5))
                .prop_map(|(level, words)| Block::Heading { level, text: words.join(" ") }),
            prop::collection::vec(word, 1..600).prop_map(|words| Block::Paragraph(words.join(" "))),
        ]
    }

    proptest! {
        /// The chunks contain every block's words in order, and no chunk is much too long.
        #[test]
        fn no_word_is_lost(blocks in prop::collection::vec(block(), 0..12)) {
            let chunks = split("no such title", &blocks);
            let all: String = chunks.iter().map(|chunk| format!("{}\n{}\n", chunk.heading, chunk.text)).collect();
            let mut rest: String = all.split_whitespace().collect();
            for block in &blocks {
                let (Block::Heading { text, .. } | Block::Paragraph(text)) = block;
                for sentence in sentences(text) {
                    let sentence: String = sentence.split_whitespace().collect();
                    let at = rest.find(&sentence);
                    prop_assert!(at.is_some(), "{sentence} is lost");
                    rest = rest[at.unwrap_or_default()..].to_owned();
                }
            }
            for chunk in &chunks {
                prop_assert!(half_words(&chunk.text) <= MAX_CHUNK_HALF_WORDS + MIN_TAIL_HALF_WORDS + MAX_OVERLAP_HALF_WORDS);
            }
        }
    }
}
