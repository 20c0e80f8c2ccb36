//! Arrays in NumPy's format: an archive (`.npz`) with a file for each array (`.npy`).

use std::io::{Cursor, Read, Seek};

use zip::ZipArchive;

use crate::EncoderError;

/// Larger than any unpacked entry of the package.
const MAX_ENTRY_BYTES: u64 = 64 << 20;

pub(crate) fn entry(archive: &mut ZipArchive<impl Read + Seek>, name: &str) -> Result<Vec<u8>, EncoderError> {
    let mut bytes = Vec::new();
    archive.by_name(name)?.take(MAX_ENTRY_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(crate) struct Arrays(ZipArchive<Cursor<Vec<u8>>>);

impl Arrays {
    pub(crate) fn open(npz: Vec<u8>) -> Result<Self, EncoderError> {
        Ok(Self(ZipArchive::new(Cursor::new(npz))?))
    }

    pub(crate) fn bytes(&mut self, name: &str, count: usize) -> Result<Vec<u8>, EncoderError> {
        self.read(name, "|u1", count)
    }

    pub(crate) fn vector(&mut self, name: &str, count: usize) -> Result<Vec<f32>, EncoderError> {
        let bytes = self.read(name, "<f4", count * 4)?;
        Ok(bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<f64, EncoderError> {
        let bytes = self.read(name, "<f8", 8)?;
        bytes.first_chunk().map(|eight| f64::from_le_bytes(*eight)).ok_or(EncoderError::Invalid("a number is missing"))
    }

    /// The numbers of an array of this type and size in bytes.
    fn read(&mut self, name: &str, kind: &str, bytes: usize) -> Result<Vec<u8>, EncoderError> {
        let file = entry(&mut self.0, &format!("{name}.npy"))?;
        let header = file.len().checked_sub(bytes).filter(|length| *length >= 10);
        let (header, numbers) = file.split_at(header.ok_or(EncoderError::Invalid("an array has a wrong size"))?);
        let header = String::from_utf8_lossy(header);
        match header.contains(&format!("'descr': '{kind}'")) && header.contains("'fortran_order': False") {
            true => Ok(numbers.to_vec()),
            false => Err(EncoderError::Invalid("an array has a wrong type")),
        }
    }
}
