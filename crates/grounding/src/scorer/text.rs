//! A message as folded tokens: lower case, without accents, with compatibility forms resolved. Properties that folding
//! loses, such as capitals, are kept as the token's kind. Each Chinese or Japanese character is a token.

use std::ops::Range;

use unicode_normalization::char::{decompose_compatible, is_combining_mark};

use crate::cjk::is_cjk;

/// Far more than the words in the part of a message that is read. Only punctuation could exceed it.
const MAX_TOKENS: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    /// Capitalized, and not the first word of a sentence.
    Name,
    /// At least two capitals, or letters mixed with digits.
    Acronym,
    Number,
    /// From 1500 to 2099.
    Year,
    /// One Chinese character or hiragana.
    Ideograph,
    Katakana,
    Mark,
    Line,
}

/// A range of the folded text, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) kind: Kind,
}

#[derive(Debug, Default)]
pub(super) struct Text {
    pub(super) folded: String,
    pub(super) tokens: Vec<Token>,
    /// Ranges of tokens. A sentence ends with its punctuation or line.
    pub(super) sentences: Vec<Range<usize>>,
}

impl Text {
    pub(super) fn read(text: &str) -> Self {
        let mut tokenizer = Tokenizer {
            text: Self { folded: String::with_capacity(text.len() + 8), ..Self::default() },
            ..Tokenizer::default()
        };
        for character in text.chars() {
            tokenizer.take(character);
            if tokenizer.text.tokens.len() >= MAX_TOKENS {
                break;
            }
        }
        tokenizer.finish()
    }

    pub(super) fn str(&self, token: &Token) -> &str {
        &self.folded[token.start as usize..token.end as usize]
    }
}

impl Token {
    pub(super) fn is_word(&self) -> bool {
        !matches!(self.kind, Kind::Mark | Kind::Line)
    }

    pub(super) fn is_cjk(&self) -> bool {
        matches!(self.kind, Kind::Ideograph | Kind::Katakana)
    }
}

#[derive(Default)]
struct Tokenizer {
    text: Text,
    /// Where the current word begins.
    word: Option<u32>,
    capitals: u32,
    letters: u32,
    digits: u32,
    first_is_capital: bool,
    sentence_start: usize,
}

impl Tokenizer {
    fn take(&mut self, character: char) {
        if character.is_ascii() {
            return self.take_ascii(character);
        }
        if is_combining_mark(character) || matches!(character, '\u{200b}'..='\u{200f}' | '\u{feff}' | '\u{00ad}') {
            return;
        }
        if is_cjk(character) {
            self.end_word();
            let start = self.position();
            self.text.folded.push(character);
            let kind = if matches!(character, 'ァ'..='ヺ' | 'ー') { Kind::Katakana } else { Kind::Ideograph };
            return self.push(start, kind);
        }
        match character {
            '’' | '‘' | 'ʼ' => self.take_ascii('\''),
            '“' | '”' | '„' | '«' | '»' | '「' | '」' | '『' | '』' | '《' | '》' => self.take_ascii('"'),
            '。' => self.take_ascii('.'),
            '？' => self.take_ascii('?'),
            '！' => self.take_ascii('!'),
            '、' | '，' => self.take_ascii(','),
            '：' => self.take_ascii(':'),
            'ß' => (0..2).for_each(|_| self.letter('s', false)),
            'đ' | 'Đ' => self.letter('d', character == 'Đ'),
            'ł' | 'Ł' => self.letter('l', character == 'Ł'),
            'ø' | 'Ø' => self.letter('o', character == 'Ø'),
            _ => {
                let capital = character.is_uppercase();
                decompose_compatible(character, |part| {
                    if part.is_ascii() && !part.is_ascii_alphanumeric() {
                        self.take_ascii(part);
                    } else if part.is_alphanumeric() && !is_combining_mark(part) {
                        part.to_lowercase().for_each(|part| self.letter(part, capital));
                    } else if !is_combining_mark(part) {
                        self.mark(part);
                    }
                });
            }
        }
    }

    fn take_ascii(&mut self, character: char) {
        match character {
            'a'..='z' | '0'..='9' => self.letter(character, false),
            'A'..='Z' => self.letter(character.to_ascii_lowercase(), true),
            // Decimal points, thousands separators and the dots of a version belong to their number.
            '.' | ',' if self.word.is_some() && self.letters == 0 => self.text.folded.push(character),
            '\'' | '_' if self.word.is_some() => {
                self.end_word();
                self.text.folded.push(' ');
            }
            ' ' | '\t' => {
                self.end_word();
                self.text.folded.push(' ');
            }
            '\n' => {
                self.end_word();
                let start = self.position();
                self.text.folded.push('\n');
                self.push(start, Kind::Line);
                self.end_sentence();
            }
            '\r' => {}
            mark => self.mark(mark),
        }
    }

    fn letter(&mut self, character: char, capital: bool) {
        if self.word.is_none() {
            (self.word, self.capitals, self.letters, self.digits) = (Some(self.position()), 0, 0, 0);
            self.first_is_capital = capital;
        }
        self.capitals += u32::from(capital);
        match character.is_ascii_digit() {
            true => self.digits += 1,
            false => self.letters += 1,
        }
        self.text.folded.push(character);
    }

    fn mark(&mut self, mark: char) {
        self.end_word();
        let start = self.position();
        self.text.folded.push(mark);
        self.push(start, Kind::Mark);
        if matches!(mark, '.' | '?' | '!') {
            self.end_sentence();
        }
    }

    fn end_word(&mut self) {
        let Some(start) = self.word.take() else { return };
        // A trailing dot of a number ends the sentence.
        let trailing = self.text.folded[start as usize..].trim_end_matches(['.', ',']).len();
        let end = start + u32::try_from(trailing).unwrap_or(0);
        let opens_sentence = !self.text.tokens[self.sentence_start..].iter().any(Token::is_word);
        let kind = match (self.letters, self.digits) {
            (0, 4) if end - start == 4 && is_year(&self.text.folded[start as usize..end as usize]) => Kind::Year,
            (0, _) => Kind::Number,
            (_, 1..) => Kind::Acronym,
            _ if self.capitals >= 2 => Kind::Acronym,
            _ if self.first_is_capital && !opens_sentence => Kind::Name,
            _ => Kind::Word,
        };
        self.text.tokens.push(Token { start, end, kind });
        if end < self.position() {
            let point = self.text.folded[end as usize..].starts_with('.');
            self.text.tokens.push(Token { start: end, end: end + 1, kind: Kind::Mark });
            if point {
                self.end_sentence();
            }
        }
    }

    fn end_sentence(&mut self) {
        let end = self.text.tokens.len();
        match self.text.tokens[self.sentence_start..].iter().any(Token::is_word) {
            true => self.text.sentences.push(self.sentence_start..end),
            // Punctuation alone belongs to the previous sentence.
            false => {
                if let Some(last) = self.text.sentences.last_mut() {
                    last.end = end;
                }
            }
        }
        self.sentence_start = end;
    }

    fn finish(mut self) -> Text {
        self.end_word();
        self.end_sentence();
        self.text
    }

    fn push(&mut self, start: u32, kind: Kind) {
        let end = self.position();
        self.text.tokens.push(Token { start, end, kind });
    }

    fn position(&self) -> u32 {
        u32::try_from(self.text.folded.len()).unwrap_or(u32::MAX)
    }
}

fn is_year(text: &str) -> bool {
    matches!(text.as_bytes(), [b'1', b'5'..=b'9', ..] | [b'2', b'0', ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens with the first letter of their kind.
    fn read(text: &str) -> String {
        let text = Text::read(text);
        let shown = |token: &Token| match token.kind {
            Kind::Line => "⏎".to_owned(),
            kind => format!("{}/{}", text.str(token), &format!("{kind:?}")[..1]),
        };
        text.tokens.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn tokens() {
        let cases = [
            ("", ""),
            ("Where is Zürich?", "where/W is/W zurich/N ?/M"),
            ("NATO's GPT4", "nato/A s/W gpt4/A"),
            ("in 1995, 3.14 or 1,000.", "in/W 1995/Y ,/M 3.14/N or/W 1,000/N ./M"),
            ("Straße ĐAK łódź", "strasse/W dak/A lodz/W"),
            ("東京タワー？", "東/I 京/I タ/K ワ/K ー/K ?/M"),
            ("ＡＢＣ ﬁn", "abc/A fin/W"),
            ("a\u{200b}b \u{ad}c", "ab/W c/W"),
            ("one\ntwo", "one/W ⏎ two/W"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_composed_letter_is_read_like_a_decomposed_one() {
        assert_eq!(read("caf\u{e9}"), read("cafe\u{301}"));
    }

    #[test]
    fn sentences_end_with_their_punctuation() {
        let text = Text::read("Hello! How are you?? Fine\nThanks...");
        assert_eq!(text.sentences, [0..2, 2..7, 7..9, 9..13]);
        let text = Text::read("...");
        assert!(text.sentences.is_empty());
    }
}
