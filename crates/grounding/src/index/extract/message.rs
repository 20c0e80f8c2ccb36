//! The protocol between the program and the child process that reads documents: a file's format and bytes, then its
//! document or the reason why there is none, as JSON. Each message is a type byte, a length and the bytes.

use std::io::{self, Read, Write};

use super::{Format, SkipReason};
use crate::index::document::Document;

/// Larger than the text of any document that people read.
const MAX_OUTCOME_BYTES: usize = 64 * 1024 * 1024;
const MAX_REASON_CHARS: usize = 200;

/// The type of an outcome's message. That of a file is its format.
const OUTCOME: u8 = b'o';

pub(super) fn write_file(output: &mut impl Write, format: Format, bytes: &[u8]) -> io::Result<()> {
    write(output, format as u8, bytes)
}

/// `None` at the end of the input.
pub(super) fn read_file(input: &mut impl Read) -> io::Result<Option<(Format, Vec<u8>)>> {
    let Some((kind, bytes)) = read(input, usize::MAX)? else { return Ok(None) };
    let format = Format::ALL.into_iter().find(|format| *format as u8 == kind).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((format, bytes)))
}

pub(super) fn write_outcome(output: &mut impl Write, outcome: &Result<Document, SkipReason>) -> io::Result<()> {
    let json = serde_json::to_vec(outcome)?;
    match json.len() <= MAX_OUTCOME_BYTES {
        true => write(output, OUTCOME, &json),
        false => write_outcome(output, &Err("there is too much text in it".into())),
    }
}

pub(super) fn read_outcome(input: &mut impl Read) -> io::Result<Result<Document, SkipReason>> {
    match read(input, MAX_OUTCOME_BYTES)?.ok_or(io::ErrorKind::UnexpectedEof)? {
        (OUTCOME, json) => {
            let outcome: Result<Document, SkipReason> = serde_json::from_slice(&json)?;
            Ok(outcome.map_err(|reason| reason.chars().take(MAX_REASON_CHARS).collect::<String>().into()))
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
        for format in Format::ALL {
            write_file(&mut pipe, format, b"\0bytes\n")?;
        }
        let mut input = pipe.as_slice();
        for format in Format::ALL {
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
            [&b""[..], b"o", b"o\x02\0\0\0{", b"o\x02\0\0\0xx", b"x\0\0\0\0", b"o\xff\xff\xff\xff", b"Segmentation"]
        {
            assert!(read_outcome(&mut &*input).is_err(), "{input:?}");
        }
    }
}
