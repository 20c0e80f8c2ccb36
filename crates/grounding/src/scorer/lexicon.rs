//! The lexicon: the concepts of words in nine languages. One automaton finds all of them in one pass.

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, MatchKind};

const TEXT: &str = include_str!("lexicon.txt");

/// An index into the concepts' names.
pub(super) type Concept = u8;

pub(super) struct Lexicon {
    names: Vec<&'static str>,
    automaton: AhoCorasick,
    /// For each pattern, its concept, and whether it must end at the end of a word.
    entries: Vec<(Concept, bool)>,
}

impl Lexicon {
    pub(super) fn load() -> Self {
        let (mut names, mut patterns, mut entries) = (Vec::new(), Vec::<String>::new(), Vec::new());
        for line in TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                names.push(name);
                continue;
            }
            let (_language, words) = line.split_once(": ").unwrap_or(("", line));
            let concept = Concept::try_from(names.len().saturating_sub(1)).unwrap_or(Concept::MAX);
            for word in words.split_whitespace() {
                let prefix = word.strip_suffix('*');
                let text = prefix.unwrap_or(word).trim_matches('_').replace('_', " ");
                let matches_anywhere = !text.is_ascii();
                patterns.push(if matches_anywhere { text } else { format!(" {text}") });
                entries.push((concept, prefix.is_none() && !matches_anywhere));
            }
        }
        let automaton = AhoCorasickBuilder::new().match_kind(MatchKind::Standard).build(&patterns);
        let automaton = automaton.expect("the lexicon is a constant, and small");
        Self { names, automaton, entries }
    }

    pub(super) fn name(&self, concept: Concept) -> &'static str {
        self.names.get(usize::from(concept)).copied().unwrap_or("?")
    }

    pub(super) fn find(&self, name: &str) -> Option<Concept> {
        self.names.iter().position(|known| *known == name).and_then(|position| Concept::try_from(position).ok())
    }

    /// Calls `found` for every match of a concept. The text must be words joined by single spaces, and begin with a space.
    pub(super) fn find_concepts(&self, plain: &str, mut found: impl FnMut(Concept, Range<usize>)) {
        for hit in self.automaton.find_overlapping_iter(plain) {
            let (concept, whole) = self.entries[hit.pattern().as_usize()];
            if !whole || plain.as_bytes().get(hit.end()).is_none_or(|next| *next == b' ') {
                found(concept, hit.range());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scorer::text::Text;

    const LANGUAGES: [&str; 9] = ["en", "de", "fr", "es", "it", "pt", "hr", "ja", "zh"];

    fn concepts_in(plain: &str) -> BTreeSet<&'static str> {
        let (lexicon, mut found) = (Lexicon::load(), BTreeSet::new());
        lexicon.find_concepts(plain, |concept, _| {
            found.insert(lexicon.name(concept));
        });
        found
    }

    #[test]
    fn every_line_is_a_comment_a_concept_or_words_of_a_language() {
        for (index, line) in TEXT.lines().enumerate() {
            let is_concept = line.starts_with('[') && line.ends_with(']');
            let language = line.split_once(": ").map(|(language, _)| language);
            let is_words = language.is_some_and(|language| LANGUAGES.contains(&language));
            assert!(line.is_empty() || line.starts_with('#') || is_concept || is_words, "line {}: {line}", index + 1);
        }
    }

    #[test]
    fn words_are_written_as_the_tokenizer_folds_them() {
        let words = TEXT.lines().filter(|line| !line.starts_with(['#', '['])).filter_map(|line| line.split_once(": "));
        for (language, words) in words {
            for word in words.split_whitespace() {
                let word = word.trim_end_matches('*').replace('_', " ");
                let text = Text::read(&word);
                let read: Vec<&str> = text.tokens.iter().map(|token| text.str(token)).collect();
                let glue = if matches!(language, "ja" | "zh") { "" } else { " " };
                assert_eq!(read.join(glue), word.trim(), "{language}");
            }
        }
    }

    #[test]
    fn concepts_have_unique_names() {
        let lexicon = Lexicon::load();
        let unique: BTreeSet<_> = lexicon.names.iter().collect();
        assert_eq!(unique.len(), lexicon.names.len());
        assert!(lexicon.find("transform").is_some());
        assert_eq!(lexicon.find("nothing of the kind"), None);
    }

    #[test]
    fn words_match_whole_words_prefixes_match_longer_words_and_characters_match_anywhere() {
        assert!(concepts_in(" who is it").contains("who"));
        assert!(!concepts_in(" whole thing").contains("who"));
        assert!(concepts_in(" aktueller stand").contains("now"));
        assert!(concepts_in("明日は誰").contains("who"));
    }
}
