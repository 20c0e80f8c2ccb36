//! One turn: its tokens with their keys, and the matched concepts.

use super::feature_set::{Features, Key};
use crate::scorer::lexicon::{Concept, Lexicon};
use crate::scorer::text::{Kind, Text, Token};

/// Tokens at each end of a long turn that are used for n-grams.
const END_TOKENS: usize = 48;

#[derive(Default)]
pub(super) struct Turn {
    pub(super) text: Text,
    pub(super) words: usize,
    keys: Vec<Key>,
    /// In order.
    matches: Vec<ConceptMatch>,
}

#[derive(Clone, Copy)]
struct ConceptMatch {
    concept: Concept,
    token: usize,
    /// Whether the match is within one token.
    is_one_token: bool,
}

impl Turn {
    pub(super) fn read(content: &str, lexicon: &Lexicon) -> Self {
        let text = Text::read(content);
        // Words joined by single spaces, as the lexicon requires, and the start of each token.
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
            keys.push(Key::from_text(feature_text(&text, token)));
            words += usize::from(token.is_word());
        }
        let mut matches = Vec::new();
        lexicon.find_concepts(&plain, |concept, range| {
            let token = starts.partition_point(|start| *start <= range.start).saturating_sub(1);
            let is_one_token =
                starts[token] == range.start && starts.get(token + 1).is_none_or(|next| range.end <= *next);
            matches.push(ConceptMatch { concept, token, is_one_token });
        });
        Self { text, words, keys, matches }
    }

    /// Each once.
    pub(super) fn concepts(&self) -> Vec<Concept> {
        let mut concepts: Vec<Concept> = self.matches.iter().map(|found| found.concept).collect();
        concepts.sort_unstable();
        concepts.dedup();
        concepts
    }

    /// Each once.
    pub(super) fn concepts_in_sentence(&self, sentence: usize) -> Vec<Concept> {
        let Some(range) = self.text.sentences.get(sentence) else { return Vec::new() };
        let inside = self.matches.iter().filter(|found| range.contains(&found.token));
        let mut concepts: Vec<Concept> = inside.map(|found| found.concept).collect();
        concepts.sort_unstable();
        concepts.dedup();
        concepts
    }

    /// For each token, the first concept that it matches alone.
    pub(super) fn token_concepts(&self) -> Vec<Option<Concept>> {
        let mut concepts = vec![None; self.text.tokens.len()];
        for found in self.matches.iter().filter(|found| found.is_one_token) {
            let first = &mut concepts[found.token];
            *first = first.or(Some(found.concept));
        }
        concepts
    }

    /// All tokens, or those at both ends of a long turn.
    pub(super) fn ends(&self) -> [std::ops::Range<usize>; 2] {
        let count = self.text.tokens.len();
        match count > 2 * END_TOKENS {
            true => [0..END_TOKENS, count - END_TOKENS..count],
            false => [0..count, 0..0],
        }
    }

    /// Runs of up to `max_length` tokens.
    pub(super) fn ngrams(
        &self,
        space: &str,
        range: std::ops::Range<usize>,
        max_length: usize,
        features: &mut Features,
    ) {
        let (space_key, end) = (Key::from_text(space), range.end);
        for start in range {
            // A character has less information than a word.
            let max_length = if self.text.tokens[start].is_cjk() { max_length + 1 } else { max_length };
            let mut key = space_key;
            for last in start..end.min(start + max_length) {
                key = key.then(self.keys[last]);
                features.add_key(key, || {
                    let run: Vec<&str> = (start..=last).map(|index| self.token_text(index)).collect();
                    format!("{space}:{}", run.join(" "))
                });
            }
        }
    }

    /// Numbers are replaced by placeholders.
    pub(super) fn token_text(&self, index: usize) -> &str {
        feature_text(&self.text, &self.text.tokens[index])
    }

    pub(super) fn key(&self, index: usize) -> Key {
        self.keys[index]
    }

    pub(super) fn head(&self, max_tokens: usize) -> std::ops::Range<usize> {
        0..self.text.tokens.len().min(max_tokens)
    }

    /// Whether the range of tokens ends in a question mark.
    pub(super) fn is_question(&self, sentence: &std::ops::Range<usize>) -> bool {
        self.text.tokens[sentence.clone()]
            .iter()
            .rfind(|token| token.kind != Kind::Line)
            .is_some_and(|token| self.text.str(token) == "?")
    }

    /// The number of names, as part of a feature's name.
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

    pub(super) fn size(&self) -> &'static str {
        size(self.words)
    }
}

/// A number of words, as part of a feature's name.
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

fn feature_text<'a>(text: &'a Text, token: &Token) -> &'a str {
    match token.kind {
        Kind::Year => "<year>",
        Kind::Number if token.end - token.start > 1 => "<number>",
        Kind::Line => "<line>",
        _ => text.str(token),
    }
}
