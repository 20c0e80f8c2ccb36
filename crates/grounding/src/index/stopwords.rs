//! Folded stop words of each language. They decide the language of a question, and are then removed from it. Documents
//! keep theirs.

use std::collections::HashSet;
use std::sync::LazyLock;

use super::language::Language;

/// A line for each language, in the order of `Language::SPACED`.
const WORDS: &str = include_str!("stopwords.txt");

/// The word must be folded.
pub(super) fn is_stopword(language: Language, word: &str) -> bool {
    static LISTS: LazyLock<Vec<HashSet<&str>>> =
        LazyLock::new(|| WORDS.lines().map(|line| line.split_ascii_whitespace().collect()).collect());

    Language::SPACED.iter().zip(&*LISTS).any(|(of, list)| *of == language && list.contains(word))
}

/// Characters that are only grammatical or mark a question.
pub(super) fn is_stop_character(c: char) -> bool {
    "的了是在有和与或吗呢吧啊这那哪什么怎样谁几多少个们请为何如及其之也就很不能可以誰幾".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_with_spaces_has_a_line() {
        assert_eq!(WORDS.lines().count(), Language::SPACED.len());
    }
}
