//! German compounds, without a dictionary. A passage is indexed by all beginnings and ends of its long words that may be
//! words: a question with `Versicherung` finds `Fahrradversicherung`. A long word in a question is split where the index has
//! both halves. Words are folded stems. Pure.

/// Of a part. Shorter ones are mostly prefixes, such as `vor` and `ver`.
pub(super) const MIN_LETTERS: usize = 4;

/// The possible first and last parts of a word. None for short words, numbers and codes.
pub(super) fn parts(word: &str) -> impl Iterator<Item = &str> {
    splits(word).flat_map(|(first, last)| [first, last])
}

/// The ways to divide a word.
pub(super) fn splits(word: &str) -> impl Iterator<Item = (&str, &str)> {
    let letters = if word.bytes().all(|byte| byte.is_ascii_lowercase()) { word.len() } else { 0 };
    (MIN_LETTERS..(letters + 1).saturating_sub(MIN_LETTERS)).map(|at| word.split_at(at))
}

/// The first part of a compound without the letters that join it to the next: `versicherung` of `versicherungs`.
pub(super) fn without_joint(first: &str) -> Option<&str> {
    first.strip_suffix('s').filter(|rest| rest.len() >= MIN_LETTERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_have_parts_and_codes_have_none() {
        assert_eq!(parts("hausboote").collect::<Vec<_>>(), ["haus", "boote", "hausb", "oote"]);
        for word in ["", "haus", "hausbau", "e-17", "x100s9000", "strasse17", "überfall"] {
            assert_eq!(parts(word).count(), 0, "{word}");
        }
        assert_eq!(without_joint("versicherungs"), Some("versicherung"));
        assert_eq!(without_joint("haus"), None);
    }
}
