//! The lexicon: which words are about what, in nine languages. One automaton finds them all in one pass.

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, MatchKind};

const TEXT: &str = include_str!("lexicon.txt");

/// What a word may be about, as a small number.
pub(super) type Concept = u8;

pub(super) struct Lexicon {
    names: Vec<&'static str>,
    automaton: AhoCorasick,
    /// For each pattern: its concept, and whether it must end where a word ends.
    entries: Vec<(Concept, bool)>,
}

impl Lexicon {
    pub(super) fn read() -> Self {
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
                let anywhere = text.chars().any(|character| !character.is_ascii());
                patterns.push(if anywhere { text } else { format!(" {text}") });
                entries.push((concept, prefix.is_none() && !anywhere));
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

    /// Every concept that a text touches, with where; the text must be one of words joined by single blanks, and begin with one.
    pub(super) fn touched(&self, plain: &str, mut found: impl FnMut(Concept, usize)) {
        for hit in self.automaton.find_overlapping_iter(plain) {
            let (concept, whole) = self.entries[hit.pattern().as_usize()];
            if !whole || plain.as_bytes().get(hit.end()).is_none_or(|next| *next == b' ') {
                found(concept, hit.start());
            }
        }
    }
}
