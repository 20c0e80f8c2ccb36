//! The languages that the index can stem, and language detection. A document is long enough for statistics over its
//! letters. For a question, stop words such as `koliko` or `wie` decide.

use whatlang::{Detector, Lang};

use super::fold::{Run, fold, runs};
use super::stopwords;

/// Other languages are indexed without stemming.
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

const CROATIAN_LETTERS: [char; 10] = ['č', 'ć', 'đ', 'š', 'ž', 'Č', 'Ć', 'Đ', 'Š', 'Ž'];

/// Folded. None of them is a word of another stemmed language.
const CROATIAN_WORDS: [&str; 26] = [
    "gdje", "kako", "zasto", "koliko", "tko", "kada", "kad", "moze", "mogu", "mozete", "moram", "trebam", "treba",
    "nije", "nisam", "nemam", "imam", "imate", "smijem", "zelim", "sto", "koji", "koja", "koje", "netko", "nesto",
];

/// Whether a text has letters of Polish, Czech, Slovak, Hungarian or Vietnamese.
fn has_letters_of_neighbours(text: &str) -> bool {
    text.to_lowercase().contains(['ą', 'ę', 'ł', 'ń', 'ś', 'ź', 'ż', 'ě', 'ř', 'ů', 'ý', 'ť', 'ľ', 'ő', 'ű', 'ơ', 'ư'])
}

impl Language {
    /// The languages with spaces between words, whose words can be stemmed.
    pub(super) const SPACED: [Self; 7] =
        [Self::English, Self::German, Self::French, Self::Spanish, Self::Italian, Self::Portuguese, Self::Croatian];

    /// A longer sample makes detection slower, not better.
    pub(super) const SAMPLE_BYTES: usize = 4096;

    pub(super) fn detect(document: &str) -> Option<Self> {
        let mut languages = Self::SPACED.into_iter().chain([Self::Japanese, Self::Chinese]);
        let detector = Detector::with_allowlist(languages.clone().map(Self::whatlang).collect());
        let detected = detector.detect_lang(&document[..document.floor_char_boundary(Self::SAMPLE_BYTES)])?;
        languages.find(|language| language.whatlang() == detected)
    }

    /// By the stop words among a question's folded words. Empty if they do not decide: a single stop word may be a content
    /// word of another language, such as `war`.
    pub(super) fn detect_in_question(words: &[&str]) -> Vec<Self> {
        const MIN_STOPWORDS: usize = 2;

        let count = |language: Self| words.iter().filter(|word| stopwords::is_stopword(language, word)).count();
        let counts = Self::SPACED.map(|language| (language, count(language)));
        let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0).max(MIN_STOPWORDS);
        counts.into_iter().filter(|(_, count)| *count == most).map(|(language, _)| language).collect()
    }

    /// By its stop words or, if they do not decide, by its letters and a few words.
    pub(super) fn is_croatian_question(question: &str) -> bool {
        let folded = fold(question);
        let mut words = Vec::new();
        runs(&folded, |run| {
            if let Run::Word(word) = run {
                words.push(word);
            }
        });
        let detected = Self::detect_in_question(&words);
        let undecided = detected.is_empty() || detected.contains(&Self::Croatian);
        let has_sign = || question.contains(CROATIAN_LETTERS) || words.iter().any(|word| CROATIAN_WORDS.contains(word));
        (detected == [Self::Croatian] || undecided && has_sign()) && !has_letters_of_neighbours(question)
    }

    /// Checks letters, too, because detection does not know the neighbouring languages.
    pub(super) fn is_croatian_document(detected: Option<Self>, sample: &str) -> bool {
        detected == Some(Self::Croatian) && !has_letters_of_neighbours(sample)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_in_croatian_are_distinguished_from_those_in_neighbouring_languages() {
        for (question, expected) in [
            ("Gdje mogu napuniti bicikl?", true),
            ("Imate li što za čitanje?", true),
            ("ključ izgubljen", true),
            ("Who is Luka Modrić?", false),
            ("Wo wohnt die Frau Matešić?", false),
            ("Gdzie mogę naładować rower?", false),
            ("Kde můžu dobít kolo, když žádná zásuvka není?", false),
            ("Bạn có thể sạc xe đạp điện ở đâu, thưa anh?", false),
        ] {
            assert_eq!(Language::is_croatian_question(question), expected, "{question}");
        }
    }

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
            assert_eq!(Language::detect(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn stop_words_decide_the_language_of_a_question() {
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
            assert_eq!(Language::detect_in_question(&words), [expected], "{words:?}");
        }
        assert_eq!(Language::detect_in_question(&["turbopumpe"]), []);
        assert_eq!(Language::detect_in_question(&["war", "crimes"]), [], "not German");
    }
}
