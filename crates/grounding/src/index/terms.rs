//! The terms of passages and questions.
//!
//! Every passage is indexed twice: by its words, and by their stems in the document's language. In Chinese and Japanese,
//! pairs of characters are used as words and single characters as stems. A question is searched in both, with stems in
//! every language that it may be in, so that a wrong detection has little effect. Questions have no operators. Pure, and
//! independent of Tantivy.

use std::collections::{HashMap, HashSet};

use super::compounds;
use super::fold::{Run, fold, runs};
use super::language::Language;
use super::stem::stem;
use super::stopwords::{is_stop_character, is_stopword};
use crate::cjk::is_hiragana;

/// Relative to a word.
const STEM_WEIGHT: f32 = 0.7;
/// A part of a compound.
const PART_WEIGHT: f32 = 0.35;
/// A single Chinese or Japanese character, relative to a pair.
const CHARACTER_WEIGHT: f32 = 0.2;
/// A pair of hiragana is mostly an ending or a particle.
const HIRAGANA_PAIR_WEIGHT: f32 = 0.2;
/// A longer question is a pasted text, whose beginning has its topic.
const MAX_QUESTION_WORDS: usize = 256;

/// The terms of one passage, separated by spaces.
#[derive(Debug, Default)]
pub(super) struct Terms {
    pub(super) words: String,
    pub(super) stems: String,
    /// Possible parts of German compounds.
    pub(super) parts: String,
}

/// Extracts the terms of one document.
pub(super) struct TermExtractor {
    language: Option<Language>,
    /// A cache of stems.
    stems: HashMap<String, String>,
}

impl TermExtractor {
    pub(super) fn new(language: Option<Language>) -> Self {
        Self { language, stems: HashMap::new() }
    }

    /// Adds a text's terms, `weight` times each.
    pub(super) fn add(&mut self, text: &str, weight: usize, terms: &mut Terms) {
        let folded = fold(text);
        if self.language == Some(Language::German) {
            runs(&folded, |run| {
                if let Run::Word(word) = run {
                    compounds::parts(self.stem(word)).for_each(|part| push(&mut terms.parts, part));
                }
            });
        }
        for _ in 0..weight {
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

/// A word of a question. A passage with any of its forms matches.
#[derive(Debug, PartialEq)]
pub(super) struct QueryTerm {
    pub(super) forms: Vec<TermForm>,
    /// The ways to divide a German word, as stems. If the index has both words of one, passages with them match, too.
    pub(super) splits: Vec<[String; 2]>,
}

#[derive(Debug, PartialEq)]
pub(super) struct TermForm {
    pub(super) field: TermField,
    pub(super) term: String,
    pub(super) weight: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TermField {
    Words,
    Stems,
    /// Of compounds.
    Parts,
}

/// The terms of a question, each once.
pub(super) fn query_terms(question: &str) -> Vec<QueryTerm> {
    let folded = fold(question);
    let (mut words, mut cjk) = (Vec::new(), Vec::new());
    runs(&folded, |run| match run {
        Run::Word(word) => words.push(word),
        Run::Cjk(run) => cjk.push(run),
    });
    words.truncate(MAX_QUESTION_WORDS);
    let detected = Language::detect_in_question(&words);
    let possible = if detected.is_empty() { &Language::SPACED[..] } else { &detected };
    let mut candidates: Vec<(bool, QueryTerm)> = Vec::new();
    let mut seen = HashSet::new();
    for word in words {
        if seen.insert(word) {
            let is_stop = detected.iter().any(|language| is_stopword(*language, word));
            candidates.push((is_stop, word_term(word, possible)));
        }
    }
    for run in cjk {
        for pair in pairs(run).take(MAX_QUESTION_WORDS).filter(|pair| seen.insert(pair)) {
            let weight = if pair.chars().all(is_hiragana) { HIRAGANA_PAIR_WEIGHT } else { 1.0 };
            candidates.push((pair.chars().all(is_stop_character), QueryTerm::single(TermField::Words, pair, weight)));
        }
        for character in characters(run).take(MAX_QUESTION_WORDS).filter(|character| seen.insert(character)) {
            let is_stop = character.chars().all(|c| is_hiragana(c) || is_stop_character(c));
            candidates.push((is_stop, QueryTerm::single(TermField::Stems, character, CHARACTER_WEIGHT)));
        }
    }
    // A question with only stop words may be a title: "to be or not to be".
    let has_only_stopwords = candidates.iter().all(|(is_stop, _)| *is_stop);
    candidates.into_iter().filter(|(is_stop, _)| has_only_stopwords || !is_stop).map(|(_, term)| term).collect()
}

impl QueryTerm {
    fn single(field: TermField, term: &str, weight: f32) -> Self {
        Self { forms: vec![TermForm { field, term: term.to_owned(), weight }], splits: Vec::new() }
    }

    /// Compounds with this word, and the parts of this word if it is one.
    fn add_compounds(&mut self, word: &str) {
        let whole = stem(Language::German, word);
        if whole.len() >= compounds::MIN_LETTERS {
            self.forms.push(TermForm {
                field: TermField::Parts,
                term: whole.clone().into_owned(),
                weight: PART_WEIGHT,
            });
        }
        for (first, last) in compounds::splits(&whole) {
            for first in [Some(first), compounds::without_joint(first)].into_iter().flatten() {
                self.splits.push([stem(Language::German, first).into_owned(), last.to_owned()]);
            }
        }
    }

    /// A part of a compound, as a word or in other compounds.
    pub(super) fn part(stem: &str) -> Self {
        let forms = [TermField::Stems, TermField::Parts];
        let forms = forms.map(|field| TermForm { field, term: stem.to_owned(), weight: PART_WEIGHT });
        Self { forms: forms.into(), splits: Vec::new() }
    }
}

fn word_term(word: &str, languages: &[Language]) -> QueryTerm {
    let mut term = QueryTerm::single(TermField::Words, word, 1.0);
    let mut stems: Vec<_> = languages.iter().map(|language| stem(*language, word)).collect();
    stems.sort_unstable();
    stems.dedup();
    let stem = |stem: std::borrow::Cow<'_, str>| TermForm {
        field: TermField::Stems,
        term: stem.into_owned(),
        weight: STEM_WEIGHT,
    };
    term.forms.extend(stems.into_iter().map(stem));
    if languages.contains(&Language::German) {
        term.add_compounds(word);
    }
    term
}

fn push(terms: &mut String, term: &str) {
    terms.push_str(term);
    terms.push(' ');
}

/// Overlapping pairs of characters. A single character is returned alone.
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
        TermExtractor::new(Some(language)).add(text, 1, &mut terms);
        (terms.words.trim_end().to_owned(), terms.stems.trim_end().to_owned())
    }

    fn terms_of_question(question: &str) -> Vec<String> {
        let show = |form: &TermForm| match form.field {
            TermField::Words => form.term.clone(),
            TermField::Stems => format!("~{}", form.term),
            TermField::Parts => format!("+{}", form.term),
        };
        query_terms(question).iter().map(|term| term.forms.iter().map(show).collect::<Vec<_>>().join(" ")).collect()
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
    fn german_compounds_are_indexed_by_their_parts_and_split_in_questions() {
        let mut terms = Terms::default();
        TermExtractor::new(Some(Language::German)).add("Fahrradversicherungen, Stall E-17", 1, &mut terms);
        let parts: Vec<&str> = terms.parts.split(' ').collect();
        assert!(parts.contains(&"fahrrad") && parts.contains(&"versicher"), "{parts:?}");
        assert!(!parts.contains(&"stall") && !parts.iter().any(|part| part.contains("17")), "{parts:?}");
        let asked = query_terms("Was ist die Versicherungsnummer und der Code E-17?");
        let splits = &asked[0].splits;
        assert!(splits.contains(&["versicher".into(), "numm".into()]), "{splits:?}");
        assert!(asked[1..].iter().all(|term| term.splits.is_empty()));
    }

    #[test]
    fn stop_words_of_a_question_are_removed() {
        for (question, expected) in [
            ("How fast are the engines?", &["fast ~fast", "engines ~engin"][..]),
            ("the THE The", &["the ~the"]),
            ("Wie hoch ist der Turm?", &["hoch ~hoch +hoch", "turm ~turm +turm"]),
            ("東京の高さは？", &["東京", "京の", "の高", "高さ", "さは", "~東", "~京", "~高"]),
            ("多少", &["多少", "~多", "~少"]),
            ("war crimes", &["war ~war", "crimes ~crim ~crime ~crimes +crim"]),
            ("name:x AND (\"y z\")*", &["name ~nam ~name", "x ~x", "and ~and", "y ~y", "z ~z"]),
            ("", &[]),
            ("?!*", &[]),
        ] {
            assert_eq!(terms_of_question(question), expected, "{question}");
        }
    }
}
