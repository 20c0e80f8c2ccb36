//! Character encodings: by the byte order mark, otherwise as declared, otherwise UTF-8 if valid, otherwise Windows-1252,
//! the most common one among older files.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

use super::SkipReason;

pub(super) fn decode<'a>(bytes: &'a [u8], declared: Option<&'static Encoding>) -> Result<Cow<'a, str>, SkipReason> {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return Ok(encoding.decode_without_bom_handling(&bytes[mark..]).0);
    }
    if is_binary(bytes) {
        return Err("it is binary, not text".into());
    }
    let encoding = match declared {
        Some(encoding) if encoding != UTF_8 => encoding,
        _ if std::str::from_utf8(bytes).is_ok() => UTF_8,
        _ => WINDOWS_1252,
    };
    Ok(encoding.decode_without_bom_handling(bytes).0)
}

/// Whether there is a NUL, or many control characters.
fn is_binary(bytes: &[u8]) -> bool {
    const SAMPLE_BYTES: usize = 64 * 1024;

    let sample = &bytes[..bytes.len().min(SAMPLE_BYTES)];
    let controls = sample.iter().filter(|b| matches!(b, 1..=8 | 14..=26 | 28..=31 | 127)).count();
    sample.contains(&0) || controls * 50 > sample.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_text() {
        let utf16: Vec<u8> = [0xFF, 0xFE].into_iter().chain("čaj".encode_utf16().flat_map(u16::to_le_bytes)).collect();
        let utf16_be: Vec<u8> =
            [0xFE, 0xFF].into_iter().chain("čaj".encode_utf16().flat_map(u16::to_be_bytes)).collect();
        for (bytes, declared, expected) in [
            ("čaj".as_bytes(), None, Ok("čaj")),
            (b"\xEF\xBB\xBFtea", None, Ok("tea")),
            (&utf16, None, Ok("čaj")),
            (&utf16_be, None, Ok("čaj")),
            (b"caf\xE9 \x80", None, Ok("café €")),
            (b"\xE8aj", Some(encoding_rs::WINDOWS_1250), Ok("čaj")),
            ("čaj".as_bytes(), Some(UTF_8), Ok("čaj")),
            (b"\x7FELF\x02\x01\x01\0\0\0", None, Err("it is binary, not text")),
            (b"\x01\x02\x03\x04abc", None, Err("it is binary, not text")),
            (b"", None, Ok("")),
        ] {
            assert_eq!(decode(bytes, declared).as_deref(), expected.map_err(SkipReason::from).as_deref(), "{bytes:?}");
        }
    }
}
