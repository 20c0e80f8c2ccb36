//! The languages whose words the index knows to inflect, and guessing which one a text is in.
//!
//! A document is long enough for statistics over its letters. A question is not: there the little words decide, such as
//! `koliko` or `wie`.

use whatlang::{Detector, Lang};

use super::stopwords;

/// A language that is treated as itself; everything else is found by its words as they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    English,
    German,
    French,
    Spanish,
    Italian,
    Portuguese,
    Croatian,
    Japanese,
    Chinese,
}

impl Language {
    /// Those that put spaces between words, and so have words to stem.
    pub(super) const SPACED: [Self; 7] =
        [Self::English, Self::German, Self::French, Self::Spanish, Self::Italian, Self::Portuguese, Self::Croatian];

    /// What a document is written in, judged by its beginning.
    pub(super) fn of_document(text: &str) -> Option<Self> {
        /// More does not make the guess better, only slower.
        const ENOUGH: usize = 4096;

        let allowed = Self::SPACED.into_iter().chain([Self::Japanese, Self::Chinese]).map(Self::whatlang).collect();
        let beginning = &text[..text.floor_char_boundary(ENOUGH)];
        Detector::with_allowlist(allowed).detect_lang(beginning).and_then(Self::from_whatlang)
    }

    /// What a question is written in, by its words without case and diacritics. Empty if they do not tell: one little
    /// word alone may be a great one elsewhere, such as `war`.
    pub(super) fn of_question(words: &[&str]) -> Vec<Self> {
        const ENOUGH: usize = 2;

        let known = |language: Self| words.iter().filter(|word| stopwords::is_stopword(language, word)).count();
        let counts = Self::SPACED.map(|language| (language, known(language)));
        let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0).max(ENOUGH);
        counts.into_iter().filter(|(_, count)| *count == most).map(|(language, _)| language).collect()
    }

    fn whatlang(self) -> Lang {
        match self {
            Self::English => Lang::Eng,
            Self::German => Lang::Deu,
            Self::French => Lang::Fra,
            Self::Spanish => Lang::Spa,
            Self::Italian => Lang::Ita,
            Self::Portuguese => Lang::Por,
            Self::Croatian => Lang::Hrv,
            Self::Japanese => Lang::Jpn,
            Self::Chinese => Lang::Cmn,
        }
    }

    fn from_whatlang(lang: Lang) -> Option<Self> {
        Some(match lang {
            Lang::Eng => Self::English,
            Lang::Deu => Self::German,
            Lang::Fra => Self::French,
            Lang::Spa => Self::Spanish,
            Lang::Ita => Self::Italian,
            Lang::Por => Self::Portuguese,
            Lang::Hrv => Self::Croatian,
            Lang::Jpn => Self::Japanese,
            Lang::Cmn => Self::Chinese,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_recognised() {
        for (text, expected) in [
            ("The indexer opens at nine in the morning and closes at six.", Language::English),
            ("Die Bibliothek öffnet um neun Uhr morgens und schließt um sechs.", Language::German),
            ("La bibliothèque ouvre à neuf heures du matin et ferme à dix-huit heures.", Language::French),
            ("La biblioteca abre a las nueve de la mañana y cierra a las seis de la tarde.", Language::Spanish),
            ("La biblioteca apre alle nove del mattino e chiude alle sei di sera.", Language::Italian),
            ("A biblioteca abre às nove da manhã e não fecha antes das seis da tarde.", Language::Portuguese),
            ("Knjižnica se otvara u devet sati ujutro i zatvara u šest navečer.", Language::Croatian),
            ("図書館は午前九時に開館し、午後六時に閉館します。", Language::Japanese),
            ("图书馆早上九点开门，晚上六点关门。", Language::Chinese),
        ] {
            assert_eq!(Language::of_document(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn little_words_tell_a_questions_language() {
        for (words, expected) in [
            ("how high is the tower", Language::English),
            ("wie hoch ist der turm", Language::German),
            ("quelle est la hauteur de la tour", Language::French),
            ("cual es la altura de la torre", Language::Spanish),
            ("quanto e alta la torre di pisa", Language::Italian),
            ("qual e a altura do farol", Language::Portuguese),
            ("koliko je visok toranj", Language::Croatian),
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            assert_eq!(Language::of_question(&words), [expected], "{words:?}");
        }
        assert_eq!(Language::of_question(&["turbopumpe"]), []);
        assert_eq!(Language::of_question(&["war", "crimes"]), [], "not German");
    }
}
