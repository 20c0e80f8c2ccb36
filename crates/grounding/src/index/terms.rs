//! What of a text goes into the index, and what of a question is looked for there.
//!
//! Every passage is indexed twice: by its words as they stand, and more loosely, by their stems in the document's
//! language. Where there are no words to see, in Chinese and Japanese, pairs of characters stand for words and single
//! ones for stems. A question is looked for in both, with stems in every language that it may be in; so it does not
//! matter much whether that was guessed well. Pure: nothing here knows Tantivy, and nothing in a question is an
//! operator.

use std::collections::{HashMap, HashSet};

use super::fold::{Run, fold, runs};
use super::language::Language;
use super::stem::stem;
use super::stopwords::{is_grammar, is_stopword};
use crate::cjk::is_hiragana;

/// How much a stem's match is worth beside a word's.
const STEM: f32 = 0.7;
/// How much a single Chinese or Japanese character is worth beside a pair.
const CHARACTER: f32 = 0.2;
/// A pair of hiragana is mostly an ending or a particle.
const ENDING: f32 = 0.2;
/// Nobody asks a question of more words; what is longer is a text, and its beginning says what it is about.
const LONGEST_QUESTION: usize = 256;

/// One passage's terms, separated by spaces.
#[derive(Debug, Default)]
pub(super) struct Terms {
    pub(super) words: String,
    pub(super) stems: String,
}

/// Makes terms out of the texts of one document.
pub(super) struct Indexing {
    language: Option<Language>,
    /// Words come again and again, stemming them does not have to.
    stems: HashMap<String, String>,
}

impl Indexing {
    pub(super) fn new(language: Option<Language>) -> Self {
        Self { language, stems: HashMap::new() }
    }

    /// Adds a text's terms, as often as it is worth.
    pub(super) fn add(&mut self, text: &str, times: usize, terms: &mut Terms) {
        let folded = fold(text);
        for _ in 0..times {
            runs(&folded, |run| match run {
                Run::Word(word) => {
                    push(&mut terms.words, word);
                    push(&mut terms.stems, self.stem(word));
                }
                Run::Cjk(run) => {
                    pairs(run).for_each(|pair| push(&mut terms.words, pair));
                    characters(run).for_each(|character| push(&mut terms.stems, character));
                }
            });
        }
    }

    fn stem<'a>(&'a mut self, word: &'a str) -> &'a str {
        let Some(language) = self.language else { return word };
        if !self.stems.contains_key(word) {
            self.stems.insert(word.to_owned(), stem(language, word).into_owned());
        }
        self.stems.get(word).map_or(word, String::as_str)
    }
}

/// Something that a question asks for: any of these forms of it will do.
#[derive(Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) forms: Vec<Form>,
}

/// A term, and how much finding it is worth.
#[derive(Debug, PartialEq)]
pub(super) struct Form {
    pub(super) place: Place,
    pub(super) term: String,
    pub(super) worth: f32,
}

/// Where a term is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Words,
    Stems,
}

/// What a question asks for, each thing once.
pub(super) fn wanted(question: &str) -> Vec<Wanted> {
    let folded = fold(question);
    let (mut words, mut unspaced) = (Vec::new(), Vec::new());
    runs(&folded, |run| match run {
        Run::Word(word) => words.push(word),
        Run::Cjk(run) => unspaced.push(run),
    });
    words.truncate(LONGEST_QUESTION);
    let told = Language::of_question(&words);
    let possible = if told.is_empty() { &Language::SPACED[..] } else { &told };
    let mut candidates: Vec<(bool, Wanted)> = Vec::new();
    let mut seen = HashSet::new();
    for word in words {
        if seen.insert(word) {
            let says_little = told.iter().any(|language| is_stopword(*language, word));
            candidates.push((says_little, wanted_word(word, possible)));
        }
    }
    for run in unspaced {
        for pair in pairs(run).take(LONGEST_QUESTION).filter(|pair| seen.insert(pair)) {
            let worth = if pair.chars().all(is_hiragana) { ENDING } else { 1.0 };
            candidates.push((pair.chars().all(is_grammar), Wanted::one(Place::Words, pair, worth)));
        }
        for character in characters(run).take(LONGEST_QUESTION).filter(|character| seen.insert(character)) {
            let says_little = character.chars().all(|c| is_hiragana(c) || is_grammar(c));
            candidates.push((says_little, Wanted::one(Place::Stems, character, CHARACTER)));
        }
    }
    // A question of little words alone may be a title: "to be or not to be".
    let only_little = candidates.iter().all(|(says_little, _)| *says_little);
    candidates.into_iter().filter(|(says_little, _)| only_little || !says_little).map(|(_, wanted)| wanted).collect()
}

impl Wanted {
    fn one(place: Place, term: &str, worth: f32) -> Self {
        Self { forms: vec![Form { place, term: term.to_owned(), worth }] }
    }
}

fn wanted_word(word: &str, languages: &[Language]) -> Wanted {
    let mut wanted = Wanted::one(Place::Words, word, 1.0);
    let mut stems: Vec<_> = languages.iter().map(|language| stem(*language, word)).collect();
    stems.sort_unstable();
    stems.dedup();
    let stem = |stem: std::borrow::Cow<'_, str>| Form { place: Place::Stems, term: stem.into_owned(), worth: STEM };
    wanted.forms.extend(stems.into_iter().map(stem));
    wanted
}

fn push(terms: &mut String, term: &str) {
    terms.push_str(term);
    terms.push(' ');
}

/// Every two neighbours of a run; a run of one stands for itself.
fn pairs(run: &str) -> impl Iterator<Item = &str> {
    let starts = run.char_indices().map(|(at, _)| at);
    let ends = run.char_indices().map(|(at, c)| at + c.len_utf8());
    let alone = run.chars().nth(1).is_none();
    starts.zip(ends.skip(usize::from(!alone))).map(|(start, end)| &run[start..end])
}

fn characters(run: &str) -> impl Iterator<Item = &str> {
    run.char_indices().map(|(at, c)| &run[at..at + c.len_utf8()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexed(language: Language, text: &str) -> (String, String) {
        let mut terms = Terms::default();
        Indexing::new(Some(language)).add(text, 1, &mut terms);
        (terms.words.trim_end().to_owned(), terms.stems.trim_end().to_owned())
    }

    fn asked(question: &str) -> Vec<String> {
        let show = |form: &Form| match form.place {
            Place::Words => form.term.clone(),
            Place::Stems => format!("~{}", form.term),
        };
        wanted(question).iter().map(|wanted| wanted.forms.iter().map(show).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn passages_are_indexed_by_words_and_by_stems() {
        let both = |words: &str, stems: &str| (words.to_owned(), stems.to_owned());
        assert_eq!(indexed(Language::English, "Two Engines!"), both("two engines", "two engin"));
        assert_eq!(indexed(Language::Croatian, "visoki Šibenik"), both("visoki sibenik", "visok sibenik"));
        assert_eq!(indexed(Language::Japanese, "東京都 3"), both("東京 京都 3", "東 京 都 3"));
        assert_eq!(indexed(Language::Chinese, "水"), both("水", "水"));
    }

    #[test]
    fn questions_ask_for_what_says_something() {
        for (question, expected) in [
            ("How fast are the engines?", &["fast ~fast", "engines ~engin"][..]),
            ("the THE The", &["the ~the"]),
            ("Wie hoch ist der Turm?", &["hoch ~hoch", "turm ~turm"]),
            ("東京の高さは？", &["東京", "京の", "の高", "高さ", "さは", "~東", "~京", "~高"]),
            ("多少", &["多少", "~多", "~少"]),
            ("war crimes", &["war ~war", "crimes ~crim ~crime ~crimes"]),
            ("name:x AND (\"y z\")*", &["name ~nam ~name", "x ~x", "and ~and", "y ~y", "z ~z"]),
            ("", &[]),
            ("?!*", &[]),
        ] {
            assert_eq!(asked(question), expected, "{question}");
        }
    }
}
