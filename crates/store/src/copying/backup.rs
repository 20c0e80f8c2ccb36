//! Backups: compacted copies of one snapshot, made while others write to the file.
//!
//! A file with the copy's name is complete, checked and durable; until then it has another name. Neither file is
//! migrated, so that a new version of this program can make a backup before it migrates.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::database::sqlite::{faults, open_read_only};
use crate::ledger::fold::{COUNT_UNREADABLE, describe_unreadable};

/// A copy that was made and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSummary {
    pub bytes: u64,
    /// The number of recorded requests in it.
    pub requests: u64,
    /// The search index that it expects.
    pub index: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    /// It may be the only backup.
    #[error("{} already exists, and is not overwritten", .0.display())]
    Occupied(PathBuf),
    #[error("the copy is damaged: {0}")]
    Damaged(String),
}

impl From<rusqlite::Error> for BackupError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Copies a database that may be in use. The copy holds everything that was committed before the call.
pub fn back_up(from: &Path, to: &Path) -> Result<BackupSummary, BackupError> {
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::Occupied(to.to_owned()));
    }
    let partial = PartialFile::create(to)?;
    let original = open_read_only(from)?;
    original.execute("VACUUM INTO ?1", [partial.name()?])?;
    let summary = check_copy(&partial.path)?;
    partial.persist(to)?;
    Ok(summary)
}

/// Reads every page of a copy that no process uses.
pub fn check_copy(path: &Path) -> Result<BackupSummary, BackupError> {
    let copy = open_read_only(path)?;
    let unreadable = copy.query_row(COUNT_UNREADABLE, [], |row| row.get(0))?;
    if let Some(fault) = faults(&copy)?.into_iter().chain(describe_unreadable(unreadable)).next() {
        return Err(BackupError::Damaged(fault));
    }
    let requests = copy.query_row("SELECT count(*) FROM requests", [], |row| row.get(0))?;
    let index = copy.query_row("SELECT max(index_id) FROM search_index", [], |row| row.get(0))?;
    let bytes = path.metadata().map_err(|error| BackupError::File { path: path.to_owned(), error })?.len();
    Ok(BackupSummary { bytes, requests, index })
}

/// The copy under its temporary name; deleted when this is dropped.
struct PartialFile {
    path: PathBuf,
}

impl PartialFile {
    /// Creates it empty, and readable only for this user: it will hold digests and addresses.
    fn create(to: &Path) -> Result<Self, BackupError> {
        let mut path = to.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        match File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => Ok(Self { path }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(BackupError::Occupied(path)),
            Err(error) => Err(BackupError::File { path, error }),
        }
    }

    fn name(&self) -> Result<&str, BackupError> {
        self.path.to_str().ok_or_else(|| BackupError::File {
            path: self.path.clone(),
            error: std::io::Error::new(ErrorKind::InvalidInput, "SQLite needs a name that is valid UTF-8"),
        })
    }

    /// Renames the copy once it is durable.
    fn persist(&self, to: &Path) -> Result<(), BackupError> {
        let kept = || {
            let file = File::open(&self.path)?;
            file.sync_all()?;
            std::fs::rename(&self.path, to)?;
            let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()
        };
        kept().map_err(|error| BackupError::File { path: to.to_owned(), error })
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // fails if it was renamed
    }
}
