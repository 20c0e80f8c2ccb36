//! Stemming of folded words, so that a word without accents has the same stem.
//!
//! Snowball covers six languages, but not Croatian. For Croatian the longest matching ending is removed here. Stems have a
//! minimal length, because a stem that is too short joins unrelated words.

use std::borrow::Cow;

use frostem::{Algorithm, Stemmer};

use super::language::Language;

pub(super) fn stem(language: Language, word: &str) -> Cow<'_, str> {
    // Names of types and models, of which a stemmer might remove a letter.
    if word.bytes().any(|b| b.is_ascii_digit()) {
        return Cow::Borrowed(word);
    }
    let algorithm = match language {
        Language::English => Algorithm::English,
        Language::German => Algorithm::German,
        Language::French => Algorithm::French,
        Language::Spanish => Algorithm::Spanish,
        Language::Italian => Algorithm::Italian,
        Language::Portuguese => Algorithm::Portuguese,
        Language::Croatian => return Cow::Borrowed(stem_croatian(word)),
        Language::Japanese | Language::Chinese => return Cow::Borrowed(word),
    };
    Stemmer::new(algorithm).stem(word)
}

/// Endings of Croatian nouns, adjectives and verbs without diacritics, the longest first.
const CROATIAN_ENDINGS: [&str; 63] = [
    "ovima", "evima", "ijama", "ajuci", "ujuci", "ovati", "avati", "ivati", "irati", "iraju", "ujemo", "ijim", "ijih",
    "ijeg", "ijem", "ijom", "anje", "enje", "anja", "enja", "anju", "enju", "ovao", "ujem", "ujes", "uju", "ova",
    "ove", "ovi", "evi", "eva", "eve", "ama", "ima", "oga", "omu", "ome", "ega", "emu", "ati", "iti", "eti", "aju",
    "ije", "iju", "ija", "iji", "imo", "amo", "ite", "ate", "om", "em", "og", "eg", "oj", "ih", "im", "a", "e", "i",
    "o", "u",
];

fn stem_croatian(word: &str) -> &str {
    const MIN_STEM_BYTES: usize = 3;

    CROATIAN_ENDINGS
        .iter()
        .filter_map(|ending| word.strip_suffix(ending))
        .find(|stem| stem.len() >= MIN_STEM_BYTES && stem.bytes().any(|b| b"aeiour".contains(&b)))
        .unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_word_share_a_stem() {
        for (language, forms) in [
            (Language::English, &["engine", "engines"][..]),
            (Language::English, &["connect", "connected", "connections"]),
            (Language::German, &["turm", "turme", "turmen", "turmes"]),
            (Language::German, &["wartung", "wartungen"]),
            (Language::French, &["marche", "marches", "marcher"]),
            (Language::French, &["pompe", "pompes"]),
            (Language::Spanish, &["cancion", "canciones"]),
            (Language::Spanish, &["torre", "torres"]),
            (Language::Italian, &["torre", "torri"]),
            (Language::Italian, &["biblioteca", "biblioteche"]),
            (Language::Portuguese, &["navio", "navios"]),
            (Language::Croatian, &["otok", "otoka", "otoku", "otokom", "otoke"]),
            (Language::Croatian, &["grad", "grada", "gradu", "gradovi", "gradova", "gradovima"]),
            (Language::Croatian, &["knjiznica", "knjiznice", "knjiznici", "knjiznicu", "knjiznicama"]),
            (Language::Croatian, &["skola", "skole", "skolama"]),
            (Language::Croatian, &["visok", "visoka", "visoko", "visokog", "visokim"]),
        ] {
            let stems: Vec<_> = forms.iter().map(|form| stem(language, form)).collect();
            assert!(stems.windows(2).all(|pair| pair[0] == pair[1]), "{language:?} {forms:?} {stems:?}");
        }
    }

    #[test]
    fn short_words_and_names_of_types_are_not_stemmed() {
        assert_eq!(stem(Language::Croatian, "sto"), "sto");
        assert_eq!(stem(Language::Croatian, "ima"), "ima");
        assert_eq!(stem(Language::English, "x100s"), "x100s");
    }
}
