//! The bytes of generated tokens as text.

/// The text of a completion. Tokens may end within a character; what never became a whole one is left out rather than
/// shown as a replacement character.
pub(crate) fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|broken| {
        let bytes = broken.into_bytes();
        bytes.utf8_chunks().map(|chunk| chunk.valid()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_characters_are_shown() {
        let whole = "grün 🦀!";
        for end in 0..=whole.len() {
            let text = text_of(whole.as_bytes()[..end].to_vec());
            assert!(whole.starts_with(&text) && !text.contains('\u{FFFD}'), "{text}");
            assert!(end - text.len() < 4);
        }
        assert_eq!(text_of(b"a\xffb\xf0\x9f".to_vec()), "ab");
    }
}
