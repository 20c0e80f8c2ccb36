//! Wording: word n-grams, spelling, and the beginning and end of the turn, where requests usually are.

use super::feature_set::{Features, Key};
use super::turn::Turn;

const MAX_SENTENCE_TOKENS: usize = 24;
/// The last ones.
const MAX_QUESTIONS: usize = 5;

/// N-grams, and single words combined with whether there are earlier turns.
pub(super) fn words(turn: &Turn, context: &str, features: &mut Features) {
    for range in turn.ends() {
        turn.ngrams("w", range, 3, features);
    }
    features.end_group(1.6);
    for range in turn.ends() {
        turn.ngrams(context, range, 1, features);
    }
    features.end_group(0.5);
}

/// Runs of three to five letters, for unknown words.
pub(super) fn spelling(turn: &Turn, features: &mut Features) {
    let mut padded = Vec::new();
    let space = Key::from_text("c");
    for index in turn.ends().into_iter().flatten() {
        let token = &turn.text.tokens[index];
        let word = turn.token_text(index);
        if !token.is_word() || token.is_cjk() || !word.is_ascii() {
            continue;
        }
        padded.clear();
        padded.push(b'^');
        padded.extend_from_slice(word.as_bytes());
        padded.push(b'$');
        for start in 0..padded.len().saturating_sub(2) {
            let mut letters = 0_u64;
            for (length, letter) in (1..=5).zip(&padded[start..]) {
                letters = letters << 8 | u64::from(*letter);
                if length >= 3 {
                    // Letters would not help in explanations.
                    features.add_key(space.then(Key::number(letters)), || "c:".to_owned());
                }
            }
        }
    }
    features.end_group(1.0);
}

pub(super) fn edges(turn: &Turn, context: &str, features: &mut Features) {
    let sentences = &turn.text.sentences;
    let first = sentences.first().cloned().unwrap_or_default();
    let last = sentences.last().cloned().unwrap_or_default();
    for (space, range) in [("first", &first), ("last", &last)] {
        turn.ngrams(space, range.start..range.end.min(range.start + MAX_SENTENCE_TOKENS), 2, features);
    }
    features.end_group(1.1);
    run("begins", context, turn, first.take(4), features);
    run("ends", context, turn, last.rev().take(3), features);
    for range in sentences.iter().rev().filter(|range| turn.is_question(range)).take(MAX_QUESTIONS) {
        turn.ngrams("asks", range.start..range.end.min(range.start + MAX_SENTENCE_TOKENS), 2, features);
    }
    features.end_group(0.7);
}

/// Growing runs from one end.
fn run(space: &str, context: &str, turn: &Turn, tokens: impl Iterator<Item = usize>, features: &mut Features) {
    let mut key = Key::from_text(space).then(Key::from_text(context));
    let mut so_far = Vec::with_capacity(4);
    for index in tokens {
        key = key.then(turn.key(index));
        so_far.push(turn.token_text(index));
        features.add_key(key, || format!("{space}:{context} {}", so_far.join(" ")));
    }
}
