//! Small changes to an input: to bytes, pieces between punctuation and numbers, and by words of a dictionary.

use std::ops::Range;

use fastrand::Rng;

/// The separators of most formats.
const PUNCTUATION: &[u8] = b"{}[]()<>\"',:;=&/?#|*`~ \n\t";
const NUMBERS: [&str; 14] = [
    "0", "-1", "1", "127", "256", "65536", "2147483648", "4294967295", "9223372036854775807", "18446744073709551616",
    "1e308", "1e999", "0.1", "-0",
];
/// Large enough for deep nesting.
const MAX_REPEATS: usize = 400;

/// `other` is another input of the corpus.
pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], dictionary: &[Vec<u8>], rng: &mut Rng) {
    match rng.u8(..12) {
        0 => {
            if let Some(byte) = rng.choice(input.iter_mut()) {
                *byte ^= 1 << rng.u8(..8);
            }
        }
        1 => {
            let byte = if rng.bool() { rng.u8(..) } else { PUNCTUATION[rng.usize(..PUNCTUATION.len())] };
            let at = rng.usize(..=input.len());
            input.insert(at, byte);
        }
        2 => drop(input.drain(range(input, rng))),
        3 => {
            let piece = input[range(input, rng)].to_vec();
            insert(input, &piece, rng);
        }
        // Deep nesting, or a long list.
        4 => {
            let mut piece = input[piece(input, rng)].to_vec();
            piece.truncate(64);
            let repeated = piece.repeat(1 << rng.u8(1..=8)).repeat(1 + rng.usize(..2));
            insert(input, &repeated[..repeated.len().min(piece.len() * MAX_REPEATS)], rng);
        }
        5 => {
            let part = other[range(other, rng)].to_vec();
            insert(input, &part, rng);
        }
        6 => {
            let (head, tail) = (range(input, rng).start, range(other, rng).start);
            input.truncate(head);
            input.extend_from_slice(&other[tail..]);
        }
        7 | 8 => {
            if let Some(word) = rng.choice(dictionary) {
                match rng.bool() {
                    true => insert(input, word, rng),
                    false => drop(input.splice(piece(input, rng), word.iter().copied())),
                }
            }
        }
        9 => {
            let number = NUMBERS[rng.usize(..NUMBERS.len())];
            let first = input.iter().position(u8::is_ascii_digit).filter(|_| rng.bool());
            let start = first.unwrap_or_else(|| rng.usize(..=input.len()));
            let length = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            input.splice(start..start + length, number.bytes());
        }
        10 => drop(input.drain(piece(input, rng))),
        _ => {
            let moved: Vec<u8> = input.drain(piece(input, rng)).collect();
            insert(input, &moved, rng);
        }
    }
}

fn insert(input: &mut Vec<u8>, bytes: &[u8], rng: &mut Rng) {
    let at = if rng.bool() { piece(input, rng).start } else { rng.usize(..=input.len()) };
    input.splice(at..at, bytes.iter().copied());
}

fn range(input: &[u8], rng: &mut Rng) -> Range<usize> {
    let (one, other) = (rng.usize(..=input.len()), rng.usize(..=input.len()));
    one.min(other)..one.max(other)
}

/// A range from one punctuation mark to a later one.
fn piece(input: &[u8], rng: &mut Rng) -> Range<usize> {
    let is_mark = |byte: &u8| PUNCTUATION.contains(byte);
    let from = rng.usize(..=input.len());
    let start = input[..from].iter().rposition(is_mark).unwrap_or(0);
    let mut end = from;
    for _ in 0..rng.usize(1..4) {
        end = input[end..].iter().skip(1).position(is_mark).map_or(input.len(), |length| end + length + 1);
    }
    start..end.max(start)
}
