//! Reads GGUF's primitive values from untrusted input.

use std::io::{BufReader, Read, Seek};

use super::{GgufError, kinds};

/// Longer texts can only be skipped.
const MAX_TEXT_BYTES: u64 = 1 << 16;

/// Reads forward, never beyond the length that the file had when it was opened.
pub(super) struct Reader<R> {
    input: BufReader<R>,
    position: u64,
    length: u64,
}

impl<R: Read + Seek> Reader<R> {
    pub(super) fn new(input: R, length: u64) -> Self {
        Self { input: BufReader::with_capacity(1 << 16, input), position: 0, length }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Advances the position, if that many bytes are left.
    fn advance(&mut self, bytes: u64) -> Result<(), GgufError> {
        let needed = self.position.saturating_add(bytes);
        if needed > self.length {
            return Err(GgufError::CutOff { needed, length: self.length });
        }
        self.position = needed;
        Ok(())
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        self.advance(N as u64)?;
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, GgufError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, GgufError> {
        self.take().map(u64::from_le_bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), GgufError> {
        self.advance(bytes)?;
        let bytes = i64::try_from(bytes).map_err(|_| GgufError::Damaged("the length of a value in it is too large"))?;
        Ok(self.input.seek_relative(bytes)?)
    }

    /// A text without control characters, because it may be printed on a terminal.
    pub(super) fn text(&mut self) -> Result<String, GgufError> {
        let length = self.u64()?;
        self.advance(length)?;
        if length > MAX_TEXT_BYTES {
            return Err(GgufError::Damaged("a name in it is too long"));
        }
        let mut text = vec![0; length as usize];
        self.input.read_exact(&mut text)?;
        Ok(String::from_utf8_lossy(&text).replace(char::is_control, " ").trim().to_owned())
    }

    pub(super) fn skip_text(&mut self) -> Result<(), GgufError> {
        let length = self.u64()?;
        self.skip(length)
    }

    pub(super) fn text_value(&mut self) -> Result<String, GgufError> {
        match self.u32()? {
            kinds::TEXT => self.text(),
            _ => Err(GgufError::Damaged("a name in it is not text")),
        }
    }

    pub(super) fn number_value(&mut self) -> Result<u64, GgufError> {
        match self.u32()? {
            0 => self.take::<1>().map(|[byte]| byte.into()),
            2 => self.take().map(|bytes| u16::from_le_bytes(bytes).into()),
            4 | 5 => self.u32().map(u64::from),
            10 | 11 => self.u64(),
            _ => Err(GgufError::Damaged("a number in it is not a number")),
        }
    }

    pub(super) fn skip_value(&mut self) -> Result<(), GgufError> {
        const UNKNOWN: GgufError = GgufError::Damaged("it has a value of an unknown kind");
        match self.u32()? {
            kinds::TEXT => self.skip_text(),
            kinds::LIST => match (self.u32()?, self.u64()?) {
                (kinds::TEXT, count) => (0..count).try_for_each(|_| self.skip_text()),
                (kind, count) => {
                    let width = kinds::width(kind).ok_or(UNKNOWN)?;
                    self.skip(count.saturating_mul(width))
                }
            },
            kind => self.skip(kinds::width(kind).ok_or(UNKNOWN)?),
        }
    }
}
