//! The documents in a folder, and the index's record of each, so that only changed files are read again.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use super::catalogue::encoded_path;
use super::extract::Format;

/// Larger than any document that people read.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// A file that was modified more recently may change again without a new modification time.
const MTIME_GRANULARITY: Duration = Duration::from_secs(2);

/// A file on disk.
#[derive(Debug)]
pub(super) struct DocumentFile {
    /// Relative to the folder.
    pub(super) path: PathBuf,
    pub(super) format: Format,
    pub(super) size: u64,
    /// In Unix nanoseconds; `None` if it is too recent to be trusted.
    pub(super) modified: Option<u128>,
}

/// The index's record of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    #[serde(with = "encoded_path")]
    pub(super) path: PathBuf,
    pub(super) url: String,
    pub(super) size: u64,
    pub(super) modified: Option<u128>,
    pub(super) digest: String,
    pub(super) passages: u64,
}

impl FileRecord {
    /// Whether the file is certainly unchanged, without reading it.
    pub(super) fn is_current(&self, file: &DocumentFile) -> bool {
        self.size == file.size && self.modified.is_some() && self.modified == file.modified
    }
}

/// The documents below a folder sorted by name, and entries that could not be read. Hidden files and folders are skipped.
/// Links are not followed, so nothing outside the folder is indexed.
pub(super) fn list_documents(folder: &Path) -> (Vec<DocumentFile>, Vec<(PathBuf, String)>) {
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
        let Some(format) = Format::from_path(entry.path()).filter(|_| entry.file_type().is_file()) else { continue };
        let Ok(path) = entry.path().strip_prefix(folder) else { continue };
        match entry.metadata() {
            Ok(metadata) => found.push(DocumentFile {
                path: path.to_owned(),
                format,
                size: metadata.len(),
                modified: trusted_mtime(&metadata, SystemTime::now()),
            }),
            Err(error) => skipped.push((entry.path().to_owned(), error.to_string())),
        }
    }
    (found, skipped)
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let too_large = || format!("it is larger than {} MiB", MAX_FILE_BYTES / 1024 / 1024);
    if fs::metadata(path).map_err(|error| error.to_string())?.len() > MAX_FILE_BYTES {
        return Err(too_large());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    // The file may have grown meanwhile.
    if bytes.len() as u64 > MAX_FILE_BYTES { Err(too_large()) } else { Ok(bytes) }
}

pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(bytes))
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn trusted_mtime(metadata: &Metadata, now: SystemTime) -> Option<u128> {
    let modified = metadata.modified().ok()?;
    let is_old_enough = now.duration_since(modified).is_ok_and(|age| age >= MTIME_GRANULARITY);
    is_old_enough.then(|| modified.duration_since(SystemTime::UNIX_EPOCH).ok())?.map(|since| since.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() -> serde_json::Result<()> {
        let mut record = FileRecord {
            path: "a/b c\t.md".into(),
            url: "local:a/b%20c".into(),
            size: 7,
            modified: Some(1 << 70),
            digest: "00ff".into(),
            passages: 3,
        };
        assert_eq!(serde_json::from_str::<FileRecord>(&serde_json::to_string(&record)?)?, record);
        record.modified = None;
        assert_eq!(serde_json::from_str::<FileRecord>(&serde_json::to_string(&record)?)?, record);
        assert!(serde_json::from_str::<FileRecord>("{\"path\":\"a\"}").is_err());
        Ok(())
    }

    #[test]
    fn a_recent_modification_time_is_not_trusted() -> std::io::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        let metadata = file.as_file().metadata()?;
        let modified = metadata.modified()?;
        assert_eq!(trusted_mtime(&metadata, modified + MTIME_GRANULARITY / 2), None);
        assert!(trusted_mtime(&metadata, modified + MTIME_GRANULARITY).is_some());
        assert_eq!(trusted_mtime(&metadata, modified - MTIME_GRANULARITY), None, "from the future");
        Ok(())
    }
}
