//! The documents in a folder, and what is remembered of each so that only what changed is read again.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use super::catalogue::{decode_path, encode_path};
use super::extract::Format;

/// What is larger is no document that people read.
pub(super) const LARGEST: u64 = 64 * 1024 * 1024;
/// A file changed within so short a time may change again without its time showing it.
const UNSETTLED: Duration = Duration::from_secs(2);

/// A document's file, as it was found.
#[derive(Debug)]
pub(super) struct Found {
    /// Below the folder.
    pub(super) path: PathBuf,
    pub(super) format: Format,
    pub(super) size: u64,
    /// When it was changed, in nanoseconds; `None` if that says nothing.
    pub(super) modified: Option<u128>,
}

/// What the index remembers of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) modified: Option<u128>,
    pub(super) digest: String,
    pub(super) passages: u64,
}

impl Record {
    /// Is the file surely as it was, without reading it?
    pub(super) fn is_of(&self, found: &Found) -> bool {
        self.size == found.size && self.modified.is_some() && self.modified == found.modified
    }

    pub(super) fn format(&self) -> String {
        let Self { path, size, modified, digest, passages } = self;
        let modified = modified.map_or_else(String::new, |nanoseconds| nanoseconds.to_string());
        format!("{size}\t{modified}\t{digest}\t{passages}\t{}", encode_path(path))
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut values = line.split('\t');
        Some(Self {
            size: values.next()?.parse().ok()?,
            modified: match values.next()? {
                "" => None,
                nanoseconds => Some(nanoseconds.parse().ok()?),
            },
            digest: values.next()?.to_owned(),
            passages: values.next()?.parse().ok()?,
            path: decode_path(values.next()?),
        })
    }
}

/// The documents below a folder in the order of their names, and what could not be looked into. Hidden files and
/// folders are passed by; links are not followed, so nothing outside the folder gets in.
pub(super) fn walk(folder: &Path) -> (Vec<Found>, Vec<(PathBuf, String)>) {
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    let entries = WalkDir::new(folder).min_depth(1).sort_by_file_name().into_iter();
    for entry in entries.filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry.path())) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let path = error.path().unwrap_or(folder).to_owned();
                let reason = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
                skipped.push((path, reason));
                continue;
            }
        };
        let Some(format) = Format::of(entry.path()).filter(|_| entry.file_type().is_file()) else { continue };
        let Ok(path) = entry.path().strip_prefix(folder) else { continue };
        match entry.metadata() {
            Ok(metadata) => found.push(Found {
                path: path.to_owned(),
                format,
                size: metadata.len(),
                modified: settled(&metadata, SystemTime::now()),
            }),
            Err(error) => skipped.push((entry.path().to_owned(), error.to_string())),
        }
    }
    (found, skipped)
}

/// A file's bytes, or why there are none to be had.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let too_large = || format!("it is larger than {} MiB", LARGEST / 1024 / 1024);
    if fs::metadata(path).map_err(|error| error.to_string())?.len() > LARGEST {
        return Err(too_large());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    // It may have grown in between.
    if bytes.len() as u64 > LARGEST { Err(too_large()) } else { Ok(bytes) }
}

/// What tells contents apart.
pub(super) fn digest(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(bytes))
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn settled(metadata: &Metadata, now: SystemTime) -> Option<u128> {
    let modified = metadata.modified().ok()?;
    let settled = now.duration_since(modified).is_ok_and(|age| age >= UNSETTLED);
    settled.then(|| modified.duration_since(SystemTime::UNIX_EPOCH).ok())?.map(|since| since.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() {
        let mut record =
            Record { path: "a/b c\t.md".into(), size: 7, modified: Some(1 << 70), digest: "00ff".into(), passages: 3 };
        assert_eq!(Record::parse(&record.format()), Some(record.clone()));
        record.modified = None;
        assert_eq!(Record::parse(&record.format()), Some(record));
        assert_eq!(Record::parse("7\t"), None);
    }

    #[test]
    fn the_time_of_a_fresh_file_says_nothing() -> std::io::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        let metadata = file.as_file().metadata()?;
        let modified = metadata.modified()?;
        assert_eq!(settled(&metadata, modified + UNSETTLED / 2), None);
        assert!(settled(&metadata, modified + UNSETTLED).is_some());
        assert_eq!(settled(&metadata, modified - UNSETTLED), None, "from the future");
        Ok(())
    }
}
