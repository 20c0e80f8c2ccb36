//! Chinese and Japanese characters, of scripts without spaces between words.

/// Kana, ideographs and their iteration marks.
pub(crate) fn is_cjk(character: char) -> bool {
    is_kana(character)
        || matches!(u32::from(character), 0x3005..=0x3007 | 0x3400..=0x9FFF | 0xF900..=0xFAFF | 0x20000..=0x3FFFF)
}

/// The Japanese letters that spell endings and particles.
pub(crate) fn is_hiragana(character: char) -> bool {
    matches!(u32::from(character), 0x3040..=0x309F)
}

/// Coarser than `is_cjk`: everything from kana upwards, including wide punctuation, Hangul and emoji. For estimates of
/// the number of words, with two such characters per word.
pub(crate) fn is_half_a_word(character: char) -> bool {
    character >= '\u{3040}'
}

fn is_kana(character: char) -> bool {
    matches!(u32::from(character), 0x3040..=0x30FF | 0x31F0..=0x31FF)
}
