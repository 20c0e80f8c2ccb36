//! The protocol between the program and the child process that reads documents: a file's format and bytes, then its
//! document as JSON or the reason why there is none. Each message is a type byte, a length and the bytes.

use std::io::{self, Read, Write};

use super::{Format, SkipReason};
use crate::index::document::Document;

/// Larger than the text of any document that people read.
const MAX_DOCUMENT_BYTES: usize = 64 * 1024 * 1024;
const MAX_REASON_BYTES: usize = 200;
const TOO_MUCH_TEXT: &str = "there is too much text in it";

const DOCUMENT: u8 = b'd';
const REASON: u8 = b'r';

pub(super) fn write_file(output: &mut impl Write, format: Format, bytes: &[u8]) -> io::Result<()> {
    let format = match format {
        Format::Markdown => b'm',
        Format::Text => b't',
        Format::Html => b'h',
        Format::Pdf => b'p',
    };
    write(output, format, bytes)
}

/// `None` at the end of the input.
pub(super) fn read_file(input: &mut impl Read) -> io::Result<Option<(Format, Vec<u8>)>> {
    let Some((format, bytes)) = read(input, usize::MAX)? else { return Ok(None) };
    let format = match format {
        b'm' => Format::Markdown,
        b't' => Format::Text,
        b'h' => Format::Html,
        b'p' => Format::Pdf,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    Ok(Some((format, bytes)))
}

pub(super) fn write_outcome(output: &mut impl Write, outcome: &Result<Document, SkipReason>) -> io::Result<()> {
    let reason = match outcome {
        Ok(document) => match serde_json::to_vec(document) {
            Ok(json) if json.len() <= MAX_DOCUMENT_BYTES => return write(output, DOCUMENT, &json),
            _ => TOO_MUCH_TEXT,
        },
        Err(reason) => reason,
    };
    write(output, REASON, reason.as_bytes())
}

pub(super) fn read_outcome(input: &mut impl Read) -> io::Result<Result<Document, SkipReason>> {
    match read(input, MAX_DOCUMENT_BYTES)?.ok_or(io::ErrorKind::UnexpectedEof)? {
        (DOCUMENT, json) => Ok(Ok(serde_json::from_slice(&json)?)),
        (REASON, mut reason) => {
            reason.truncate(MAX_REASON_BYTES);
            Ok(Err(String::from_utf8_lossy(&reason).into_owned().into()))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn write(output: &mut impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    output.write_all(&[kind])?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(bytes)?;
    output.flush()
}

/// `None` if the input ends before a message begins.
fn read(input: &mut impl Read, max_bytes: usize) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut kind = [0];
    if input.read(&mut kind)? == 0 {
        return Ok(None);
    }
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > max_bytes {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    // Grows with the received data, not to the announced length.
    input.take(length as u64).read_to_end(&mut bytes)?;
    match bytes.len() == length {
        true => Ok(Some((kind[0], bytes))),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;
    use crate::index::document::Block;

    #[test]
    fn messages_read_back() -> io::Result<()> {
        let mut pipe = Vec::new();
        for format in [Format::Markdown, Format::Text, Format::Html, Format::Pdf] {
            write_file(&mut pipe, format, b"\0bytes\n")?;
        }
        let mut input = pipe.as_slice();
        for format in [Format::Markdown, Format::Text, Format::Html, Format::Pdf] {
            assert_eq!(read_file(&mut input)?, Some((format, b"\0bytes\n".to_vec())));
        }
        assert_eq!(read_file(&mut input)?, None);

        let document = || Document {
            title: Some("T".into()),
            date: Some(date(2024, 5, 1)),
            blocks: vec![Block::Heading { level: 2, text: "H".into() }, Block::Paragraph("a\n\"b\"".into())],
        };
        for outcome in [Ok(document()), Ok(Document::default()), Err("it is late".into())] {
            let mut pipe = Vec::new();
            write_outcome(&mut pipe, &outcome)?;
            assert_eq!(read_outcome(&mut pipe.as_slice())?, outcome);
            assert!(read_outcome(&mut &pipe[..pipe.len() - 1]).is_err(), "half a message");
        }
        Ok(())
    }

    #[test]
    fn an_invalid_message_is_an_error() {
        for input in
            [&b""[..], b"d", b"d\x02\0\0\0{", b"d\x02\0\0\0xx", b"x\0\0\0\0", b"d\xff\xff\xff\xff", b"Segmentation"]
        {
            assert!(read_outcome(&mut &*input).is_err(), "{input:?}");
        }
    }
}
