//! Normalized text for comparison: words without case and diacritics, and runs of Chinese and Japanese. The same for
//! documents and questions in any language, so that words without accents are found, too. Pure.

use unicode_normalization::char::{decompose_compatible, is_combining_mark};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::cjk::is_cjk;

/// Longer words are digests or encoded data, not search terms.
const MAX_WORD_BYTES: usize = 64;

/// Text between spaces, punctuation or a change to or from Chinese and Japanese.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Run<'a> {
    Word(&'a str),
    /// Text without spaces between its words.
    Cjk(&'a str),
}

/// Removes case, diacritics and full width. Kana keep their voicing marks, which are not accents.
pub(super) fn fold(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    if is_nfc_quick(text.chars()) == IsNormalized::Yes {
        text.chars().for_each(|c| fold_char(c, &mut folded));
    } else {
        text.nfc().for_each(|c| fold_char(c, &mut folded));
    }
    folded
}

/// The text must be folded.
pub(super) fn runs<'a>(folded: &'a str, mut each: impl FnMut(Run<'a>)) {
    let mut start = 0;
    let mut kind = Kind::Gap;
    let mut end_run = |kind: Kind, run: &'a str| match kind {
        Kind::Word if run.len() <= MAX_WORD_BYTES => each(Run::Word(run)),
        Kind::Cjk => each(Run::Cjk(run)),
        Kind::Word | Kind::Gap => (),
    };
    for (at, c) in folded.char_indices() {
        let next = Kind::from_char(c);
        if next != kind {
            end_run(kind, &folded[start..at]);
            (start, kind) = (at, next);
        }
    }
    end_run(kind, &folded[start..]);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gap,
    Word,
    Cjk,
}

impl Kind {
    fn from_char(c: char) -> Self {
        if c.is_ascii_alphanumeric() {
            Self::Word
        } else if c.is_ascii() || c == '\u{30FB}' {
            // The katakana middle dot separates words.
            Self::Gap
        } else if is_cjk(c) {
            Self::Cjk
        } else if c.is_alphanumeric() {
            Self::Word
        } else {
            Self::Gap
        }
    }
}

fn fold_char(c: char, folded: &mut String) {
    if c.is_ascii() {
        folded.push(c.to_ascii_lowercase());
        return;
    }
    // Hangul syllables would be decomposed into letters.
    if is_cjk(c) || matches!(u32::from(c), 0xAC00..=0xD7A3) {
        folded.push(c);
        return;
    }
    for lower in c.to_lowercase() {
        match lower {
            // Letters that Unicode does not decompose, in their usual ASCII spelling.
            'ß' => folded.push_str("ss"),
            'æ' => folded.push_str("ae"),
            'œ' => folded.push_str("oe"),
            'đ' | 'ð' => folded.push('d'),
            'ø' => folded.push('o'),
            'ł' => folded.push('l'),
            'ı' => folded.push('i'),
            // Soft hyphen and zero-width characters.
            '\u{AD}' | '\u{200B}'..='\u{200D}' | '\u{FEFF}' => (),
            _ => decompose_compatible(lower, |part| {
                if !is_combining_mark(part) {
                    folded.extend(part.to_lowercase());
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> String {
        let folded = fold(text);
        let mut cut = Vec::new();
        runs(&folded, |run| {
            cut.push(match run {
                Run::Word(word) => word.to_owned(),
                Run::Cjk(run) => format!("<{run}>"),
            });
        });
        cut.join(" ")
    }

    #[test]
    fn text_is_folded_and_cut() {
        for (text, expected) in [
            ("The Quick, brown fox!", "the quick brown fox"),
            ("Größe, Straße; ÄRGER", "grosse strasse arger"),
            ("l'été à Besançon", "l ete a besancon"),
            ("Đakovo, čćžš ŠĐ", "dakovo cczs sd"),
            ("canción São João", "cancion sao joao"),
            ("cafe\u{301} ＡＢＣ１２３", "cafe abc123"),
            ("東京タワーの高さ", "<東京タワーの高さ>"),
            ("が か\u{3099}", "<が> <が>"),
            ("GPU の価格 300円", "gpu <の価格> 300 <円>"),
            ("ウォーター・ポンプ", "<ウォーター> <ポンプ>"),
            ("长城有多长？北京。", "<长城有多长> <北京>"),
            ("soft\u{AD}ware (x AND y)* \"q:\"", "software x and y q"),
            ("", ""),
        ] {
            assert_eq!(cut(text), expected, "{text}");
        }
    }

    #[test]
    fn overlong_words_are_omitted() {
        assert_eq!(cut(&format!("a {} b", "x".repeat(65))), "a b");
    }
}
