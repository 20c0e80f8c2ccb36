//! One turn, read once for all: its tokens with their keys, and the concepts that it touches, each with its token.

use super::collected::{Features, Key};
use crate::scorer::lexicon::{Concept, Lexicon};
use crate::scorer::text::{Kind, Text, Token};

/// Words of a long turn that are looked at closely, from either end.
const CLOSE: usize = 48;

/// A turn, read.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) text: Text,
    pub(super) words: usize,
    /// Each token's key.
    keys: Vec<Key>,
    /// What it touches, in the order in which it does.
    touched: Vec<Touched>,
}

/// A concept, and where it is touched.
#[derive(Clone, Copy)]
struct Touched {
    concept: Concept,
    token: usize,
    /// Whether that token alone does.
    alone: bool,
}

impl Turn {
    pub(super) fn read(content: &str, lexicon: &Lexicon) -> Self {
        let text = Text::read(content);
        // Words joined by single blanks, as the lexicon wants them, and where each token begins there.
        let mut plain = String::with_capacity(text.folded.len() + text.tokens.len());
        let mut starts = Vec::with_capacity(text.tokens.len());
        let mut keys = Vec::with_capacity(text.tokens.len());
        let mut words = 0;
        for token in &text.tokens {
            starts.push(plain.len());
            if !token.is_cjk() {
                plain.push(' ');
            }
            plain.push_str(if token.kind == Kind::Line { "." } else { text.str(token) });
            keys.push(Key::of(word(&text, token)));
            words += usize::from(token.is_word());
        }
        let mut touched = Vec::new();
        lexicon.touched(&plain, |concept, place| {
            let token = starts.partition_point(|start| *start <= place.start).saturating_sub(1);
            let alone = starts[token] == place.start && starts.get(token + 1).is_none_or(|next| place.end <= *next);
            touched.push(Touched { concept, token, alone });
        });
        Self { text, words, keys, touched }
    }

    /// The concepts it touches, once each.
    pub(super) fn concepts(&self) -> Vec<Concept> {
        let mut concepts: Vec<Concept> = self.touched.iter().map(|touched| touched.concept).collect();
        concepts.sort_unstable();
        concepts.dedup();
        concepts
    }

    /// The concepts that a sentence touches, once each.
    pub(super) fn concepts_of(&self, sentence: usize) -> Vec<Concept> {
        let Some(range) = self.text.sentences.get(sentence) else { return Vec::new() };
        let inside = self.touched.iter().filter(|touched| range.contains(&touched.token));
        let mut concepts: Vec<Concept> = inside.map(|touched| touched.concept).collect();
        concepts.sort_unstable();
        concepts.dedup();
        concepts
    }

    /// What each token is about by itself: the first concept that it touches alone.
    pub(super) fn about(&self) -> Vec<Option<Concept>> {
        let mut about = vec![None; self.text.tokens.len()];
        for touched in self.touched.iter().filter(|touched| touched.alone) {
            let first = &mut about[touched.token];
            *first = first.or(Some(touched.concept));
        }
        about
    }

    /// The tokens that are looked at closely: all, or those at both ends of a long turn.
    pub(super) fn close(&self) -> [std::ops::Range<usize>; 2] {
        let count = self.text.tokens.len();
        match count > 2 * CLOSE {
            true => [0..CLOSE, count - CLOSE..count],
            false => [0..count, 0..0],
        }
    }

    /// Runs of up to `longest` tokens, as they are said.
    pub(super) fn ngrams(&self, space: &str, range: std::ops::Range<usize>, longest: usize, features: &mut Features) {
        let (space_key, end) = (Key::of(space), range.end);
        for start in range {
            // Characters say less than words.
            let longest = if self.text.tokens[start].is_cjk() { longest + 1 } else { longest };
            let mut key = space_key;
            for last in start..end.min(start + longest) {
                key = key.then(self.keys[last]);
                features.add_key(key, || {
                    let said: Vec<&str> = (start..=last).map(|index| self.said(index)).collect();
                    format!("{space}:{}", said.join(" "))
                });
            }
        }
    }

    /// A token as a feature names it: a number is a number, whichever it is.
    pub(super) fn said(&self, index: usize) -> &str {
        word(&self.text, &self.text.tokens[index])
    }

    pub(super) fn key(&self, index: usize) -> Key {
        self.keys[index]
    }

    /// The first so many tokens.
    pub(super) fn head(&self, most: usize) -> std::ops::Range<usize> {
        0..self.text.tokens.len().min(most)
    }

    /// Whether a sentence ends in a question mark.
    pub(super) fn asks(&self, sentence: &std::ops::Range<usize>) -> bool {
        self.text.tokens[sentence.clone()]
            .iter()
            .rfind(|token| token.kind != Kind::Line)
            .is_some_and(|token| self.text.str(token) == "?")
    }

    /// How many names there are, in words.
    pub(super) fn names(&self) -> &'static str {
        let tokens = &self.text.tokens;
        match tokens.iter().filter(|token| matches!(token.kind, Kind::Name | Kind::Acronym)).count() {
            0 if tokens.iter().any(|token| token.kind == Kind::Katakana) => "katakana",
            0 => "no names",
            1 => "a name",
            2..4 => "names",
            _ => "many names",
        }
    }

    /// How long it is, in words.
    pub(super) fn size(&self) -> &'static str {
        size(self.words)
    }
}

/// So many words, in words.
pub(super) fn size(words: usize) -> &'static str {
    match words {
        0..2 => "one word",
        2..4 => "a few words",
        4..8 => "short",
        8..16 => "medium",
        16..40 => "long",
        40..90 => "very long",
        _ => "huge",
    }
}

fn word<'a>(text: &'a Text, token: &Token) -> &'a str {
    match token.kind {
        Kind::Year => "<year>",
        Kind::Number if token.end - token.start > 1 => "<number>",
        Kind::Line => "<line>",
        _ => text.str(token),
    }
}
