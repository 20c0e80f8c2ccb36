//! Splits a text into the pieces of a SentencePiece model (unigram) with the highest sum of scores. The time is linear
//! in the text's length.

use prost::Message;
use unicode_normalization::UnicodeNormalization;

use crate::EncoderError;

/// SentencePiece's character for a space; every word begins with one.
const SPACE: char = '▁';
const UNKNOWN: u32 = 0;
const BEGIN: u32 = 1;
const END: u32 = 2;
/// The score of a character without a piece is lower than the lowest score of a piece by this.
const UNKNOWN_PENALTY: f32 = 10.0;
/// A longer text is truncated, because one vector represents it poorly.
const MAX_TOKENS: usize = 512;
const MAX_CHARS: usize = 4 * MAX_TOKENS;

/// SentencePiece's file in protobuf's format. A piece's id is its position.
#[derive(Clone, PartialEq, prost::Message)]
struct ModelFile {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<PieceMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PieceMessage {
    #[prost(bytes = "vec", tag = "1")]
    text: Vec<u8>,
    #[prost(float, tag = "2")]
    score: f32,
}

struct Piece {
    text: Vec<u8>,
    id: u32,
    score: f32,
}

pub(crate) struct Pieces {
    /// Sorted by their bytes.
    sorted: Vec<Piece>,
    unknown_score: f32,
}

impl Pieces {
    pub(crate) fn parse(model: &[u8]) -> Result<Self, EncoderError> {
        let pieces = ModelFile::decode(model).map_err(|_| INVALID)?.pieces;
        let lowest = pieces.iter().map(|piece| piece.score).fold(0.0, f32::min);
        let with_id = |(id, PieceMessage { text, score })| Piece { text, id, score };
        let mut sorted: Vec<_> = (0..).zip(pieces).map(with_id).collect();
        sorted.retain(|piece| ![UNKNOWN, BEGIN, END].contains(&piece.id) && !piece.text.is_empty());
        sorted.sort_by(|one, other| one.text.cmp(&other.text));
        match sorted.is_empty() {
            true => Err(INVALID),
            false => Ok(Self { sorted, unknown_score: lowest - UNKNOWN_PENALTY }),
        }
    }

    pub(crate) fn tokens(&self, text: &str) -> Vec<u32> {
        let normalized = normalize(text);
        let mut tokens = vec![BEGIN];
        tokens.extend(self.best_split(&normalized));
        tokens.truncate(MAX_TOKENS - 1);
        tokens.push(END);
        tokens
    }

    fn best_split(&self, text: &str) -> Vec<u32> {
        if text.is_empty() {
            return vec![UNKNOWN];
        }
        // For each position: the best score of the text before it, and the start and id of the last piece of that split.
        let mut best: Vec<(f32, usize, u32)> = vec![(f32::NEG_INFINITY, 0, UNKNOWN); text.len() + 1];
        best[0].0 = 0.0;
        for (start, character) in text.char_indices() {
            let before = best[start].0;
            let mut improve = |end: usize, score: f32, id: u32| {
                if before + score > best[end].0 {
                    best[end] = (before + score, start, id);
                }
            };
            let mut has_single = false;
            self.prefixes(&text.as_bytes()[start..], |piece| {
                has_single |= piece.text.len() == character.len_utf8();
                improve(start + piece.text.len(), piece.score, piece.id);
            });
            if !has_single {
                improve(start + character.len_utf8(), self.unknown_score, UNKNOWN);
            }
        }
        let (mut tokens, mut end) = (Vec::new(), text.len());
        while end > 0 {
            let (_, start, id) = best[end];
            tokens.push(id);
            end = start;
        }
        tokens.reverse();
        tokens
    }

    /// Calls `found` for every piece that the text begins with, shortest first.
    fn prefixes<'a>(&'a self, text: &[u8], mut found: impl FnMut(&'a Piece)) {
        let mut rest = &self.sorted[..];
        for (length, byte) in text.iter().enumerate() {
            let next = |piece: &Piece| piece.text.get(length).copied();
            rest = &rest[rest.partition_point(|piece| next(piece) < Some(*byte))..];
            rest = &rest[..rest.partition_point(|piece| next(piece) == Some(*byte))];
            match rest.first() {
                Some(piece) if piece.text.len() == length + 1 => found(piece),
                Some(_) => {}
                None => return,
            }
        }
    }
}

const INVALID: EncoderError = EncoderError::Invalid("its word pieces cannot be read");

/// Normalizes to NFKC, with one space before each word.
fn normalize(text: &str) -> String {
    let mut normalized = String::with_capacity(text.len() + 8);
    let composed: String =
        text.chars().take(MAX_CHARS).filter(|c| !c.is_control() || c.is_whitespace()).nfkc().collect();
    for word in composed.split_whitespace() {
        normalized.push(SPACE);
        normalized.push_str(word);
    }
    normalized
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(pieces: &[(&str, f32)]) -> Vec<u8> {
        let special = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)];
        let message = |(text, score): &(&str, f32)| {
            let mut piece = vec![0x0a, u8::try_from(text.len()).unwrap()];
            piece.extend(text.as_bytes());
            piece.push(0x15);
            piece.extend(score.to_le_bytes());
            [vec![0x0a, u8::try_from(piece.len()).unwrap()], piece].concat()
        };
        special.iter().chain(pieces).flat_map(message).collect()
    }

    #[test]
    fn the_split_with_the_best_sum_is_chosen() {
        let pieces = [("▁", -5.0), ("▁a", -2.0), ("b", -3.0), ("▁ab", -4.5), ("c", -3.0), ("bc", -2.0), ("ß", -9.0)];
        let pieces = Pieces::parse(&model(&pieces)).unwrap();
        assert_eq!(pieces.tokens("ab"), [BEGIN, 6, END]);
        assert_eq!(pieces.tokens("  abc \n"), [BEGIN, 4, 8, END], "-2 and -2 are better than -4.5 and -3");
        assert_eq!(pieces.tokens("ａｂ"), [BEGIN, 6, END], "wide letters are letters");
        assert_eq!(pieces.tokens("aß b"), [BEGIN, 4, 9, 3, 5, END]);
        assert_eq!(pieces.tokens("ax"), [BEGIN, 4, UNKNOWN, END]);
        assert_eq!(pieces.tokens(""), [BEGIN, UNKNOWN, END]);
        assert_eq!(pieces.tokens(&"x".repeat(100_000)).len(), MAX_TOKENS);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Pieces::parse(&bytes);
        }

        #[test]
        fn a_truncated_model_is_an_error_or_has_fewer_pieces(end in 0..80_usize) {
            let model = model(&[("▁a", -2.0), ("b", -3.0), ("c", -3.0)]);
            if let Ok(pieces) = Pieces::parse(&model[..end.min(model.len())]) {
                prop_assert!(pieces.sorted.len() <= 3);
            }
        }
    }
}
