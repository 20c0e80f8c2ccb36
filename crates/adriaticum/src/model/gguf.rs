//! Checks that a file is one whole GGUF model, and reads its name and size.
//!
//! Reads the header, the metadata and the list of tensors, but no weights. Every length in the file is checked against
//! the bytes that are left, so that a damaged file costs neither memory nor time. Whether the embedded runtime supports
//! the architecture is not known here.

mod kinds;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use indicatif::DecimalBytes;

use self::reader::Reader;

/// Far more than any model has, and quick to read.
const MAX_PAIRS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
const MAX_DIMENSIONS: u32 = 4;
/// The weights start at a multiple of this, unless the metadata says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;

#[derive(Debug, PartialEq)]
pub(crate) struct Summary {
    /// `general.name`, or else the architecture.
    pub(crate) name: String,
    /// Such as `llama`.
    pub(crate) architecture: String,
    /// Such as `Q4_1`.
    pub(crate) quantization: String,
    pub(crate) parameters: u64,
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

/// Why a file cannot be used as a model. Each message continues a sentence that starts with the path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GgufError {
    #[error("cannot be read: {0}. Correct the path, or make the file readable")]
    Unreadable(#[from] io::Error),
    /// A folder, a device or a pipe.
    #[error("is not a file: name a GGUF file")]
    NotAFile,
    #[error("is not a GGUF file")]
    NotGguf,
    #[error("is GGUF of version {0}, but only versions 2 and 3 are supported: use a newer file of the model")]
    Version(u32),
    #[error("is GGUF for big-endian machines: use the little-endian file of the model")]
    BigEndian,
    #[error("is cut off or damaged: it holds {length} bytes where {needed} are needed. Fetch it again")]
    CutOff { needed: u64, length: u64 },
    #[error("is damaged: {0}. Fetch it again")]
    Damaged(&'static str),
    #[error("is one of {0} pieces of a model: join them with `llama-gguf-split --merge`, or use a model in one file")]
    Split(u64),
    /// A projector, an adapter or another part that goes with a model.
    #[error("is not a model but a part of the type {0:?}: use the model itself")]
    Accessory(String),
}

pub(crate) fn inspect(path: &Path) -> Result<Summary, GgufError> {
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(GgufError::NotAFile);
    }
    read(File::open(path)?, metadata.len())
}

fn read(input: impl Read + Seek, length: u64) -> Result<Summary, GgufError> {
    let mut reader = Reader::new(input, length);
    // A file of less than four bytes is not reported as a truncated model: it may be anything.
    if length < 4 || &reader.take::<4>()? != b"GGUF" {
        return Err(GgufError::NotGguf);
    }
    match reader.u32()? {
        2 | 3 => {}
        other if other.trailing_zeros() >= 16 && other != 0 => return Err(GgufError::BigEndian),
        other => return Err(GgufError::Version(other)),
    }
    let (tensors, pairs) = (reader.u64()?, reader.u64()?);
    if tensors > MAX_TENSORS || pairs > MAX_PAIRS {
        return Err(GgufError::Damaged("it counts more parts than any model has"));
    }
    let metadata = Metadata::read(&mut reader, pairs)?;
    if let Some(pieces) = metadata.pieces.filter(|pieces| *pieces > 1) {
        return Err(GgufError::Split(pieces));
    }
    if let Some(kind) = metadata.kind.filter(|kind| kind != "model") {
        return Err(GgufError::Accessory(kind));
    }
    let weights = Weights::read(&mut reader, tensors, metadata.alignment.unwrap_or(DEFAULT_ALIGNMENT))?;
    let architecture = metadata.architecture.ok_or(GgufError::Damaged("it does not name its architecture"))?;
    Ok(Summary {
        name: metadata.name.filter(|name| !name.is_empty()).unwrap_or_else(|| architecture.clone()),
        architecture,
        quantization: metadata.file_type.and_then(kinds::file_type).map_or(weights.kind, str::to_owned),
        parameters: weights.count,
        bytes: length,
    })
}

/// The metadata that matters here.
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
    fn read(reader: &mut Reader<impl Read + Seek>, pairs: u64) -> Result<Self, GgufError> {
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

struct Weights {
    count: u64,
    /// The most common type of the weights.
    kind: String,
}

impl Weights {
    /// Reads the list of tensors. All must lie within the file.
    fn read(reader: &mut Reader<impl Read + Seek>, tensors: u64, alignment: u64) -> Result<Self, GgufError> {
        const TOO_LARGE: GgufError = GgufError::Damaged("the size or offset of a tensor in it is too large");
        let mut by_kind = BTreeMap::<u32, u64>::new();
        let (mut count, mut end) = (0_u64, 0_u64);
        for _ in 0..tensors {
            reader.skip_text()?;
            let dimensions = reader.u32()?;
            if dimensions > MAX_DIMENSIONS {
                return Err(GgufError::Damaged("it has a tensor of more than four dimensions"));
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
        let (kind, _) = most.ok_or(GgufError::Damaged("it holds no weights"))?;
        if !alignment.is_power_of_two() {
            return Err(GgufError::Damaged("its alignment is not a power of two"));
        }
        let start = reader.position().checked_next_multiple_of(alignment).ok_or(TOO_LARGE)?;
        let (needed, length) = (start.checked_add(end).ok_or(TOO_LARGE)?, reader.length());
        if needed > length {
            return Err(GgufError::CutOff { needed, length });
        }
        Ok(Self { count, kind: kinds::name(kind) })
    }
}
