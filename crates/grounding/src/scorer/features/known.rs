//! How much of what is asked about is there already: in earlier messages, or beside the question in the turn itself. Words are
//! compared by their beginnings, so that endings do not matter; Chinese and Japanese by pairs of characters.

use std::ops::Range;

use chat::Role;

use super::collected::{Features, Key};
use super::earlier::Earlier;
use super::turn::{Turn, size};
use crate::scorer::text::{Kind, Text};

/// Bytes of a word that must be the same.
const BEGINNING: usize = 6;
/// Bytes of other earlier messages that are read; the last ones are read anyway.
const FURTHER_BACK: usize = 2048;

/// What the features of the turn itself weigh.
const GIVEN: f32 = 0.5;

/// A set of words, by a bit for each hash: at a few thousand words it is wrong about one in thirty that is not in it.
struct Words([u64; 1024]);

impl Words {
    fn none() -> Self {
        Self([0; 1024])
    }

    fn add_all(&mut self, text: &Text, range: Range<usize>) {
        contents(text, range, |hash, _| self.0[hash as usize >> 6 & 1023] |= 1 << (hash & 63));
    }

    fn has(&self, hash: u32) -> bool {
        self.0[hash as usize >> 6 & 1023] >> (hash & 63) & 1 == 1
    }

    /// How many of a text's words are in it, and how many not; then the same of names.
    fn compare(&self, text: &Text, range: Range<usize>) -> [usize; 4] {
        let mut counts = [0; 4];
        contents(text, range, |hash, is_name| {
            let there = usize::from(!self.has(hash));
            counts[there] += 1;
            counts[2 + there] += usize::from(is_name);
        });
        counts
    }
}

/// The words that carry meaning, by the hash of their beginnings, with whether each is a name.
fn contents(text: &Text, range: Range<usize>, mut found: impl FnMut(u32, bool)) {
    let tokens = &text.tokens[range];
    let mut before: Option<&str> = None;
    for token in tokens {
        let said = text.str(token);
        let is_character = token.is_cjk() && said.chars().all(|character| character >= '\u{30a0}');
        if is_character {
            if let Some(before) = before {
                found(Key::of(before).then(Key::of(said)).finish(), token.kind == Kind::Katakana);
            }
            before = Some(said);
            continue;
        }
        before = None;
        let carries = match token.kind {
            Kind::Name | Kind::Acronym | Kind::Number | Kind::Year => true,
            Kind::Word => token.end - token.start > 4,
            _ => false,
        };
        if carries {
            let beginning = said.as_bytes().iter().take(BEGINNING).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
            found(Key::of("").then(Key::number(beginning)).finish(), matches!(token.kind, Kind::Name | Kind::Acronym));
        }
    }
}

/// What of this turn was there in earlier ones.
pub(super) fn in_earlier_turns(turn: &Turn, earlier: &Earlier<'_>, features: &mut Features) {
    if earlier.before.is_empty() {
        return;
    }
    let mut words = Words::none();
    for read in [&earlier.user, &earlier.assistant].into_iter().flatten() {
        words.add_all(&read.text, 0..read.text.tokens.len());
    }
    let mut room = FURTHER_BACK;
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
        let head = super::cut(message.content(), room);
        let text = Text::read(head);
        words.add_all(&text, 0..text.tokens.len());
        room -= head.len();
    }
    let [known, new, known_names, new_names] = words.compare(&turn.text, 0..turn.text.tokens.len()).map(amount);
    let context = earlier.context();
    features.add("overlap", &["known", known, "new", new]);
    features.add("overlap", &["known", known, context]);
    features.add("overlap", &["new", new, context]);
    features.add("overlap", &["names", known_names, new_names, context]);
    features.end_group(0.7);
}

/// What of its question the turn itself tells.
pub(super) fn beside_the_question(turn: &Turn, brought: &Turn, features: &mut Features) {
    let sentences = &turn.text.sentences;
    let question = sentences.iter().rfind(|range| turn.asks(range)).or(sentences.last());
    let Some(question) = question else { return };
    let beside = turn.text.tokens.len() - question.len();
    if beside == 0 && brought.words == 0 {
        features.add("given", &["nothing"]);
        features.end_group(GIVEN);
        return;
    }
    let mut words = Words::none();
    words.add_all(&brought.text, 0..brought.text.tokens.len());
    words.add_all(&turn.text, 0..question.start);
    words.add_all(&turn.text, question.end..turn.text.tokens.len());
    let [known, new, known_names, new_names] = words.compare(&turn.text, question.clone()).map(amount);
    let asks = if turn.asks(question) { "?" } else { "." };
    let amount_beside = size(beside + brought.words);
    features.add("given", &["known", known, "new", new, asks]);
    features.add("given", &["known", known, amount_beside]);
    features.add("given", &["new", new, amount_beside]);
    features.add("given", &["names", known_names, new_names, asks]);
    features.add("given", &[amount_beside, asks]);
    let statements = sentences.iter().filter(|range| !turn.asks(range) && range.start < question.start).count();
    features.add("given", &["statements", amount(statements), asks]);
    features.end_group(GIVEN);
}

fn amount(count: usize) -> &'static str {
    match count {
        0 => "none",
        1 => "one",
        2..4 => "some",
        _ => "many",
    }
}
