//! The number of words of the question that occur elsewhere: in earlier messages, or in the rest of the turn. Words are
//! compared by their first bytes, so that endings do not matter; Chinese and Japanese by pairs of characters.

use std::ops::Range;

use chat::Role;

use super::earlier::Earlier;
use super::feature_set::{Features, Key};
use super::turn::{Turn, size};
use crate::scorer::text::{Kind, Text};

const COMPARED_BYTES: usize = 6;
/// Of earlier messages beyond the last of each role.
const MAX_FURTHER_BYTES: usize = 2048;

/// Of the features that compare the turn with itself.
const GIVEN_GROUP_WEIGHT: f32 = 0.5;

/// A Bloom filter with one hash. With a few thousand words, one in thirty other words is a false positive.
struct WordSet([u64; 1024]);

impl WordSet {
    fn new() -> Self {
        Self([0; 1024])
    }

    fn add_all(&mut self, text: &Text, range: Range<usize>) {
        content_words(text, range, |hash, _| self.0[hash as usize >> 6 & 1023] |= 1 << (hash & 63));
    }

    fn has(&self, hash: u32) -> bool {
        self.0[hash as usize >> 6 & 1023] >> (hash & 63) & 1 == 1
    }

    /// Counts of known words, new words, known names and new names.
    fn compare(&self, text: &Text, range: Range<usize>) -> [usize; 4] {
        let mut counts = [0; 4];
        content_words(text, range, |hash, is_name| {
            let is_new = usize::from(!self.has(hash));
            counts[is_new] += 1;
            counts[2 + is_new] += usize::from(is_name);
        });
        counts
    }
}

/// The hashes of content words, and whether each is a name.
fn content_words(text: &Text, range: Range<usize>, mut found: impl FnMut(u32, bool)) {
    let tokens = &text.tokens[range];
    let mut before: Option<&str> = None;
    for token in tokens {
        let word = text.str(token);
        let is_character = token.is_cjk() && word.chars().all(|character| character >= '\u{30a0}');
        if is_character {
            if let Some(before) = before {
                found(Key::from_text(before).then(Key::from_text(word)).finish(), token.kind == Kind::Katakana);
            }
            before = Some(word);
            continue;
        }
        before = None;
        let carries = match token.kind {
            Kind::Name | Kind::Acronym | Kind::Number | Kind::Year => true,
            Kind::Word => token.end - token.start > 4,
            _ => false,
        };
        if carries {
            let start =
                word.as_bytes().iter().take(COMPARED_BYTES).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
            found(
                Key::from_text("").then(Key::number(start)).finish(),
                matches!(token.kind, Kind::Name | Kind::Acronym),
            );
        }
    }
}

/// Words of this turn that occur in earlier ones.
pub(super) fn in_earlier_turns(turn: &Turn, earlier: &Earlier<'_>, features: &mut Features) {
    if earlier.before.is_empty() {
        return;
    }
    let mut words = WordSet::new();
    for read in [&earlier.user, &earlier.assistant].into_iter().flatten() {
        words.add_all(&read.text, 0..read.text.tokens.len());
    }
    let mut bytes_left = MAX_FURTHER_BYTES;
    let mut is_read = [false; 2];
    for message in earlier.before.iter().rev() {
        let which = match message.role() {
            Role::User => Some(0),
            Role::Assistant => Some(1),
            Role::System => None,
        };
        if let Some(which) = which
            && !is_read[which]
        {
            is_read[which] = true;
            continue;
        }
        let head = super::truncate(message.content(), bytes_left);
        let text = Text::read(head);
        words.add_all(&text, 0..text.tokens.len());
        bytes_left -= head.len();
    }
    let [known, new, known_names, new_names] = words.compare(&turn.text, 0..turn.text.tokens.len()).map(amount);
    let context = earlier.context();
    features.add("overlap", &["known", known, "new", new]);
    features.add("overlap", &["known", known, context]);
    features.add("overlap", &["new", new, context]);
    features.add("overlap", &["names", known_names, new_names, context]);
    features.end_group(0.7);
}

/// Words of the question that occur in the rest of the turn or in its material.
pub(super) fn beside_the_question(turn: &Turn, material: &Turn, features: &mut Features) {
    let sentences = &turn.text.sentences;
    let question = sentences.iter().rfind(|range| turn.is_question(range)).or(sentences.last());
    let Some(question) = question else { return };
    let beside = turn.text.tokens.len() - question.len();
    if beside == 0 && material.words == 0 {
        features.add("given", &["nothing"]);
        features.end_group(GIVEN_GROUP_WEIGHT);
        return;
    }
    let mut words = WordSet::new();
    words.add_all(&material.text, 0..material.text.tokens.len());
    words.add_all(&turn.text, 0..question.start);
    words.add_all(&turn.text, question.end..turn.text.tokens.len());
    let [known, new, known_names, new_names] = words.compare(&turn.text, question.clone()).map(amount);
    let asks = if turn.is_question(question) { "?" } else { "." };
    let amount_beside = size(beside + material.words);
    features.add("given", &["known", known, "new", new, asks]);
    features.add("given", &["known", known, amount_beside]);
    features.add("given", &["new", new, amount_beside]);
    features.add("given", &["names", known_names, new_names, asks]);
    features.add("given", &[amount_beside, asks]);
    let statements = sentences.iter().filter(|range| !turn.is_question(range) && range.start < question.start).count();
    features.add("given", &["statements", amount(statements), asks]);
    features.end_group(GIVEN_GROUP_WEIGHT);
}

fn amount(count: usize) -> &'static str {
    match count {
        0 => "none",
        1 => "one",
        2..4 => "some",
        _ => "many",
    }
}
