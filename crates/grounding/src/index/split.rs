//! Cuts a document into passages: long enough to say something, short enough that several fit into a prompt.
//!
//! A passage never crosses a heading. Paragraphs stay whole unless one alone is too long; then it is cut at the ends of
//! sentences, and the last sentence of a part is repeated in the next. No word is lost. Pure.

use super::document::Block;
use crate::cjk::is_cjk;

/// A passage is not longer, in half words: a Chinese or Japanese character is about half a word.
const LONGEST: usize = 2 * 200;
/// A part of a paragraph that is too long.
const PART: usize = 2 * 150;
/// What is repeated between parts is not longer.
const OVERLAP: usize = 2 * 40;
/// What is left over at the end of a section and shorter goes with the passage before it.
const TAIL: usize = 2 * 40;
/// A word is counted once for every so many letters, so that what has no spaces does not pass for one word.
const LETTERS: usize = 24;

/// One passage of a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The headings it stands under, outermost first, without the document's title.
    pub(super) heading: String,
    pub(super) text: String,
}

/// Cuts a document's blocks into passages. Every one is shown with the title, so no heading has to repeat it.
pub(super) fn split(title: &str, blocks: &[Block]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut path: Vec<(u8, &str)> = Vec::new();
    let mut section: Vec<&str> = Vec::new();
    // A heading that nothing follows before its like is text itself.
    let mut bare = false;
    for block in blocks {
        match block {
            Block::Paragraph(text) => {
                section.push(text);
                bare = false;
            }
            Block::Heading { level, text } => {
                end_section(&mut pieces, join(title, &path), &mut section);
                if bare && path.last().is_some_and(|(above, _)| above >= level) {
                    pieces.extend(as_text(title, &mut path));
                }
                path.retain(|(above, _)| above < level);
                path.push((*level, text));
                bare = true;
            }
        }
    }
    end_section(&mut pieces, join(title, &path), &mut section);
    if bare {
        pieces.extend(as_text(title, &mut path));
    }
    pieces
}

/// How long a text is, in half words.
pub(super) fn measure(text: &str) -> usize {
    text.split_whitespace().map(measure_word).sum()
}

fn measure_word(word: &str) -> usize {
    let all = word.chars().count();
    let unspaced = word.chars().filter(|c| is_cjk(*c)).count();
    unspaced + 2 * (all - unspaced).div_ceil(LETTERS)
}

fn as_text(title: &str, path: &mut Vec<(u8, &str)>) -> Option<Piece> {
    let (_, text) = path.pop()?;
    Some(Piece { heading: join(title, path), text: text.to_owned() })
}

fn join(title: &str, path: &[(u8, &str)]) -> String {
    path.iter().map(|(_, text)| *text).filter(|text| *text != title).collect::<Vec<_>>().join(" › ")
}

/// Packs a section's paragraphs into as few passages as are not too long.
fn end_section(pieces: &mut Vec<Piece>, heading: String, section: &mut Vec<&str>) {
    let first = pieces.len();
    let mut text = String::new();
    let mut length = 0;
    for paragraph in section.drain(..) {
        for part in parts(paragraph) {
            let more = measure(&part);
            if length > 0 && length + more > LONGEST {
                pieces.push(Piece { heading: heading.clone(), text: std::mem::take(&mut text) });
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
    match pieces[first..].last_mut() {
        Some(before) if length < TAIL => {
            before.text.push('\n');
            before.text.push_str(&text);
        }
        _ => pieces.push(Piece { heading, text }),
    }
}

/// The paragraph, or its parts if it is too long for one passage.
fn parts(paragraph: &str) -> Vec<String> {
    if measure(paragraph) <= LONGEST {
        return vec![paragraph.to_owned()];
    }
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut length = 0;
    for sentence in sentences(paragraph) {
        let more = measure(sentence);
        if length > 0 && length + more > PART {
            let overlap = last_sentence(&part).to_owned();
            parts.push(std::mem::replace(&mut part, overlap));
            length = measure(&part);
        }
        part.push_str(sentence);
        length += more;
    }
    parts.push(part);
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

/// The last sentence of a part that is cut off here, if it is not too long to be repeated.
fn last_sentence(part: &str) -> &str {
    match sentences(part).last() {
        Some(sentence) if sentence.len() < part.len() && measure(sentence) <= OVERLAP => sentence,
        _ => "",
    }
}

/// A text's sentences with the space behind them. One that is too long is cut at a space, or anywhere if there is none.
fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    let mut length = 0;
    let mut word = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map_or(text.len(), |(next, _)| *next);
        if c.is_whitespace() {
            length += measure_word(&text[word..at]);
            word = next;
        }
        let before = text[..at].chars().next_back();
        let ended = match c {
            '。' | '！' | '？' => true,
            c if c.is_whitespace() => before.is_some_and(|mark| matches!(mark, '.' | '!' | '?' | '…' | ':' | ';')),
            _ => false,
        };
        let too_long = match c.is_whitespace() {
            true => length >= OVERLAP,
            false => next - word > LETTERS * 8 && length + measure_word(&text[word..next]) >= OVERLAP,
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

    /// Heading and number of words of every passage.
    fn shape(blocks: &[Block]) -> Vec<(String, usize)> {
        let shape = |piece: Piece| (piece.heading, piece.text.split_whitespace().count());
        split("Title", blocks).into_iter().map(shape).collect()
    }

    fn expect(blocks: &[Block], expected: &[(&str, usize)]) {
        let expected: Vec<_> = expected.iter().map(|(heading, words)| ((*heading).to_owned(), *words)).collect();
        assert_eq!(shape(blocks), expected);
    }

    #[test]
    fn paragraphs_are_packed_and_headings_separate() {
        expect(&[paragraph(50), paragraph(60), paragraph(70)], &[("", 180)]);
        expect(&[paragraph(120), paragraph(90), paragraph(100)], &[("", 120), ("", 190)]);
        expect(&[paragraph(190), paragraph(20)], &[("", 210)]);
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
    fn a_heading_with_nothing_under_it_is_text() {
        expect(&[heading(1, "one two"), heading(1, "three")], &[("", 2), ("", 1)]);
        expect(&[heading(1, "A"), heading(2, "end")], &[("A", 1)]);
        expect(&[], &[]);
    }

    #[test]
    fn a_paragraph_too_long_is_cut_at_sentences_which_overlap() {
        let pieces = split("", &[paragraph(500)]);
        assert!(pieces.len() > 2);
        for (one, next) in pieces.iter().zip(&pieces[1..]) {
            assert!(one.text.ends_with('.'), "{}", one.text);
            let last = one.text.trim_end_matches('.').rsplit(". ").next().unwrap_or_default();
            assert!(next.text.starts_with(last), "{last} / {}", next.text);
        }
    }

    #[test]
    fn text_without_spaces_is_cut_too() {
        let chinese = "长城是中国古代的军事防御工程。".repeat(200);
        let digest = "0123456789abcdef".repeat(2000);
        for text in [chinese, digest] {
            let pieces = split("", &[Block::Paragraph(text)]);
            assert!(pieces.len() > 3);
            for piece in pieces {
                assert!(measure(&piece.text) <= LONGEST + TAIL, "{}", measure(&piece.text));
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
        /// Every block's words stand together in passages in their order, and no passage is much too long.
        #[test]
        fn no_word_is_lost(blocks in prop::collection::vec(block(), 0..12)) {
            let pieces = split("no such title", &blocks);
            let all: String = pieces.iter().map(|piece| format!("{}\n{}\n", piece.heading, piece.text)).collect();
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
            for piece in &pieces {
                prop_assert!(measure(&piece.text) <= LONGEST + TAIL + OVERLAP);
            }
        }
    }
}
