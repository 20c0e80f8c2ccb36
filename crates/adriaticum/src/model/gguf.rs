//! The GGUF check: is this file one whole model, and which?
//!
//! Reads the header, the metadata and the list of tensors, and nothing of the weights. Every length that a file claims
//! is held against what is left of it, so that a damaged file costs neither memory nor time. Whether the embedded
//! runtime knows the architecture is not known here.

mod kinds;
#[cfg(test)]
#[path = "../../tests/model/sample.rs"]
pub(super) mod sample;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use indicatif::DecimalBytes;

/// Far more than any model has, and little enough to be read at once.
const MAX_PAIRS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
const MAX_TEXT: u64 = 1 << 16;
const MAX_DIMENSIONS: u32 = 4;
/// Where nothing else is said, the weights begin at a multiple of this.
const ALIGNMENT: u64 = 32;

/// What a usable model says about itself.
#[derive(Debug, PartialEq)]
pub(crate) struct Summary {
    /// What it calls itself; its architecture if it has no name.
    pub(crate) name: String,
    /// The family that it belongs to, such as `llama`.
    pub(crate) architecture: String,
    /// How its weights are stored, such as `Q4_1`.
    pub(crate) quantization: String,
    /// How many weights it has.
    pub(crate) parameters: u64,
    /// The size of the file.
    pub(crate) bytes: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, architecture, quantization, parameters, bytes } = self;
        let parameters = match *parameters as f64 {
            few if few < 1e6 => format!("{few:.0}"),
            millions if millions < 1e9 => format!("{:.0}M", millions / 1e6),
            billions => format!("{:.1}B", billions / 1e9),
        };
        let bytes = DecimalBytes(*bytes);
        write!(f, "{name} ({architecture}, {parameters} parameters, {quantization}, {bytes})")
    }
}

/// Why a file cannot be used as a model: the rest of a sentence that begins with its path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// The file is not there, or may not be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It begins like something else.
    #[error("is not a GGUF file")]
    NotGguf,
    /// A version that the runtime does not read.
    #[error("is GGUF of version {0}, and only versions 2 and 3 can be used: take a newer file of the model")]
    Version(u32),
    /// Written for machines of the other byte order.
    #[error("is GGUF for big-endian machines: take the ordinary file of the model")]
    BigEndian,
    /// Shorter than it says it is.
    #[error("is cut off or damaged: it holds {length} bytes where {needed} are needed. Fetch it again")]
    CutOff {
        /// The bytes there must be at the least.
        needed: u64,
        /// The bytes there are.
        length: u64,
    },
    /// It contradicts itself.
    #[error("is damaged: {0}. Fetch it again")]
    Damaged(&'static str),
    /// One of several files that only together are a model.
    #[error("is one of {0} pieces of a model: join them with `llama-gguf-split --merge`, or take a model in one file")]
    Split(u64),
    /// Something that goes with a model.
    #[error("is not a model but what it calls its {0:?} part: take the model itself")]
    Accessory(String),
}

/// Looks at the file and says what model it is, or why it is none.
pub(crate) fn inspect(path: &Path) -> Result<Summary, Unusable> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    read(file, length)
}

fn read(input: impl Read + Seek, length: u64) -> Result<Summary, Unusable> {
    let mut reader = Reader { input: BufReader::with_capacity(1 << 16, input), position: 0, length };
    // Shorter than four bytes is no cut-off model: it is anything.
    if length < 4 || &reader.take::<4>()? != b"GGUF" {
        return Err(Unusable::NotGguf);
    }
    match reader.u32()? {
        2 | 3 => {}
        other if other.trailing_zeros() >= 16 && other != 0 => return Err(Unusable::BigEndian),
        other => return Err(Unusable::Version(other)),
    }
    let (tensors, pairs) = (reader.u64()?, reader.u64()?);
    if tensors > MAX_TENSORS || pairs > MAX_PAIRS {
        return Err(Unusable::Damaged("it counts more parts than any model has"));
    }
    let metadata = Metadata::read(&mut reader, pairs)?;
    if let Some(pieces) = metadata.pieces.filter(|pieces| *pieces > 1) {
        return Err(Unusable::Split(pieces));
    }
    if let Some(kind) = metadata.kind.filter(|kind| kind != "model") {
        return Err(Unusable::Accessory(kind));
    }
    let weights = Weights::read(&mut reader, tensors, metadata.alignment.unwrap_or(ALIGNMENT))?;
    let architecture = metadata.architecture.ok_or(Unusable::Damaged("it does not name its architecture"))?;
    Ok(Summary {
        name: metadata.name.filter(|name| !name.is_empty()).unwrap_or_else(|| architecture.clone()),
        architecture,
        quantization: metadata.file_type.and_then(kinds::file_type).map_or(weights.kind, str::to_owned),
        parameters: weights.count,
        bytes: length,
    })
}

/// The few pairs of the metadata that matter here.
#[derive(Default)]
struct Metadata {
    architecture: Option<String>,
    name: Option<String>,
    kind: Option<String>,
    file_type: Option<u64>,
    alignment: Option<u64>,
    pieces: Option<u64>,
}

impl Metadata {
    fn read(reader: &mut Reader<impl Read + Seek>, pairs: u64) -> Result<Self, Unusable> {
        let mut metadata = Self::default();
        for _ in 0..pairs {
            match reader.text()?.as_str() {
                "general.architecture" => metadata.architecture = Some(reader.text_value()?),
                "general.name" => metadata.name = Some(reader.text_value()?),
                "general.type" => metadata.kind = Some(reader.text_value()?),
                "general.file_type" => metadata.file_type = Some(reader.number_value()?),
                "general.alignment" => metadata.alignment = Some(reader.number_value()?),
                "split.count" => metadata.pieces = Some(reader.number_value()?),
                _ => reader.skip_value()?,
            }
        }
        Ok(metadata)
    }
}

/// All tensors taken together.
struct Weights {
    count: u64,
    /// The kind that most weights are of.
    kind: String,
}

impl Weights {
    /// Reads the list of tensors, which must all lie within the file.
    fn read(reader: &mut Reader<impl Read + Seek>, tensors: u64, alignment: u64) -> Result<Self, Unusable> {
        const TOO_LARGE: Unusable = Unusable::Damaged("it has a tensor beyond all bounds");
        let mut by_kind = BTreeMap::<u32, u64>::new();
        let (mut count, mut end) = (0_u64, 0_u64);
        for _ in 0..tensors {
            reader.skip_text()?;
            let dimensions = reader.u32()?;
            if dimensions > MAX_DIMENSIONS {
                return Err(Unusable::Damaged("it has a tensor of more than four dimensions"));
            }
            let mut weights = 1_u64;
            for _ in 0..dimensions {
                weights = weights.checked_mul(reader.u64()?).ok_or(TOO_LARGE)?;
            }
            let (kind, offset) = (reader.u32()?, reader.u64()?);
            let bytes = kinds::bytes(kind, weights).ok_or(TOO_LARGE)?;
            end = end.max(offset.checked_add(bytes).ok_or(TOO_LARGE)?);
            count = count.checked_add(weights).ok_or(TOO_LARGE)?;
            *by_kind.entry(kind).or_default() += weights; // no more than `count`
        }
        let most = by_kind.into_iter().max_by_key(|(_, weights)| *weights);
        let (kind, _) = most.ok_or(Unusable::Damaged("it holds no weights"))?;
        if !alignment.is_power_of_two() {
            return Err(Unusable::Damaged("its alignment is no power of two"));
        }
        let start = reader.position.checked_next_multiple_of(alignment).ok_or(TOO_LARGE)?;
        let needed = start.checked_add(end).ok_or(TOO_LARGE)?;
        if needed > reader.length {
            return Err(Unusable::CutOff { needed, length: reader.length });
        }
        Ok(Self { count, kind: kinds::name(kind) })
    }
}

/// Reads forward, never beyond the end that the file had when it was opened.
struct Reader<R> {
    input: BufReader<R>,
    position: u64,
    length: u64,
}

impl<R: Read + Seek> Reader<R> {
    /// Moves on by that much, if it is there.
    fn claim(&mut self, bytes: u64) -> Result<(), Unusable> {
        let needed = self.position.saturating_add(bytes);
        if needed > self.length {
            return Err(Unusable::CutOff { needed, length: self.length });
        }
        self.position = needed;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Unusable> {
        self.claim(N as u64)?;
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Unusable> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Unusable> {
        self.take().map(u64::from_le_bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Unusable> {
        self.claim(bytes)?;
        let bytes = i64::try_from(bytes).map_err(|_| Unusable::Damaged("it has a value beyond all bounds"))?;
        Ok(self.input.seek_relative(bytes)?)
    }

    /// A text that can be shown on a terminal.
    fn text(&mut self) -> Result<String, Unusable> {
        let length = self.u64()?;
        self.claim(length)?;
        if length > MAX_TEXT {
            return Err(Unusable::Damaged("a name in it is too long"));
        }
        let mut text = vec![0; length as usize];
        self.input.read_exact(&mut text)?;
        Ok(String::from_utf8_lossy(&text).replace(char::is_control, " ").trim().to_owned())
    }

    fn skip_text(&mut self) -> Result<(), Unusable> {
        let length = self.u64()?;
        self.skip(length)
    }

    fn text_value(&mut self) -> Result<String, Unusable> {
        match self.u32()? {
            kinds::TEXT => self.text(),
            _ => Err(Unusable::Damaged("a name in it is not text")),
        }
    }

    fn number_value(&mut self) -> Result<u64, Unusable> {
        match self.u32()? {
            0 => self.take::<1>().map(|[byte]| byte.into()),
            2 => self.take().map(|bytes| u16::from_le_bytes(bytes).into()),
            4 | 5 => self.u32().map(u64::from),
            10 | 11 => self.u64(),
            _ => Err(Unusable::Damaged("a number in it is not a number")),
        }
    }

    fn skip_value(&mut self) -> Result<(), Unusable> {
        const UNKNOWN: Unusable = Unusable::Damaged("it has a value of an unknown kind");
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
