//! Translates word by word into rough English, which is enough for the encoder to recognize the topic of a text.

use std::collections::HashMap;

use super::super::fold::{Run, fold, runs};

/// Each line has a form, or with `*` a stem of forms, and its translation, which is `-` for a word that is omitted.
const CROATIAN: &str = include_str!("croatian.txt");

pub(super) struct Glossary {
    forms: HashMap<&'static str, &'static str>,
    stems: HashMap<&'static str, &'static str>,
    longest_stem: usize,
}

impl Glossary {
    pub(super) fn croatian() -> Self {
        Self::parse(CROATIAN)
    }

    fn parse(text: &'static str) -> Self {
        let (mut forms, mut stems) = (HashMap::new(), HashMap::new());
        for (form, translation) in text.lines().filter_map(|line| line.split_once(' ')) {
            match form.strip_suffix('*') {
                Some(stem) => stems.insert(stem, translation),
                None => forms.insert(form, translation),
            };
        }
        let longest_stem = stems.keys().map(|stem| stem.len()).max().unwrap_or(0);
        Self { forms, stems, longest_stem }
    }

    /// Unknown words, such as names, numbers and codes, are kept.
    pub(super) fn translate(&self, text: &str) -> String {
        let folded = fold(text);
        let mut translated = String::with_capacity(text.len());
        runs(&folded, |run| {
            let (Run::Word(word) | Run::Cjk(word)) = run;
            let translation = self.find(word).unwrap_or(word);
            if translation != "-" {
                translated.push_str(translation);
                translated.push(' ');
            }
        });
        translated
    }

    fn find(&self, word: &str) -> Option<&'static str> {
        let stem = || {
            let lengths = (1..=self.longest_stem.min(word.len())).rev();
            lengths.filter_map(|length| word.get(..length)).find_map(|stem| self.stems.get(stem).copied())
        };
        self.forms.get(word).copied().or_else(stem)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn words_are_translated_by_their_form_or_their_longest_stem() {
        let glossary = Glossary::parse("racun* invoice\nracunal* computer\nje is\nse -\nkljuc* key");
        assert_eq!(
            glossary.translate("Ključevi se zovu K-4, račun je za računalo."),
            "key zovu k 4 invoice is za computer "
        );
    }

    #[test]
    fn every_line_is_a_form_and_a_translation_and_forms_are_unique() {
        let lines: Vec<_> = CROATIAN.lines().collect();
        for line in &lines {
            let (form, translation) = line.split_once(' ').unwrap();
            let stem = form.strip_suffix('*').unwrap_or(form);
            assert!(stem.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{line}");
            assert!(!translation.is_empty() && translation.is_ascii(), "{line}");
        }
        let forms: HashSet<_> = lines.iter().filter_map(|line| line.split_once(' ')).map(|(form, _)| form).collect();
        assert_eq!(forms.len(), lines.len());
    }

    #[test]
    fn a_question_in_croatian_becomes_rough_english() {
        let translated = Glossary::croatian().translate("Gdje mogu napuniti bicikl?");
        assert!(translated.contains("where") && translated.contains("bicycle"), "{translated}");
    }
}
