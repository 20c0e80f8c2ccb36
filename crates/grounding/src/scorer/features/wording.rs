//! What is said: the words in their order, how they are spelled, and how the turn begins and ends, where requests are.

use super::collected::{Features, Key};
use super::turn::Turn;

/// Words of a sentence that are looked at.
const SENTENCE: usize = 24;
/// Questions that are looked at: the last ones.
const QUESTIONS: usize = 5;

/// Words in their order, and words by whether something went before.
pub(super) fn words(turn: &Turn, context: &str, features: &mut Features) {
    for range in turn.close() {
        turn.ngrams("w", range, 3, features);
    }
    features.end_group(1.6);
    for range in turn.close() {
        turn.ngrams(context, range, 1, features);
    }
    features.end_group(0.5);
}

/// Runs of three to five letters, which tell what an unknown word is like.
pub(super) fn spelling(turn: &Turn, features: &mut Features) {
    let mut padded = Vec::new();
    let space = Key::of("c");
    for index in turn.close().into_iter().flatten() {
        let token = &turn.text.tokens[index];
        let word = turn.said(index);
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
                    // Names of letters would tell nobody anything.
                    features.add_key(space.then(Key::number(letters)), || "c:".to_owned());
                }
            }
        }
    }
    features.end_group(1.0);
}

/// How the turn begins and ends, and its questions.
pub(super) fn edges(turn: &Turn, context: &str, features: &mut Features) {
    let sentences = &turn.text.sentences;
    let first = sentences.first().cloned().unwrap_or_default();
    let last = sentences.last().cloned().unwrap_or_default();
    for (space, range) in [("first", &first), ("last", &last)] {
        turn.ngrams(space, range.start..range.end.min(range.start + SENTENCE), 2, features);
    }
    features.end_group(1.1);
    run("begins", context, turn, first.take(4), features);
    run("ends", context, turn, last.rev().take(3), features);
    for range in sentences.iter().rev().filter(|range| turn.asks(range)).take(QUESTIONS) {
        turn.ngrams("asks", range.start..range.end.min(range.start + SENTENCE), 2, features);
    }
    features.end_group(0.7);
}

/// Longer and longer runs from one end.
fn run(space: &str, context: &str, turn: &Turn, tokens: impl Iterator<Item = usize>, features: &mut Features) {
    let mut key = Key::of(space).then(Key::of(context));
    let mut so_far = Vec::with_capacity(4);
    for index in tokens {
        key = key.then(turn.key(index));
        so_far.push(turn.said(index));
        features.add_key(key, || format!("{space}:{context} {}", so_far.join(" ")));
    }
}
