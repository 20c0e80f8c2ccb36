//! A copy of the whole file while others write to it: one snapshot, without the gaps that deleted rows have left.
//!
//! What stands under the copy's name is whole, sound and on the disk; until then it has another name. Neither file is taken to
//! a newer schema, so that a back-up can be made by the very program that is about to do so.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::{BUSY_TIMEOUT, faults};
use crate::StoreError;

/// A copy that was made and looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSummary {
    /// How large it is.
    pub bytes: u64,
    /// How many requests it has rows of.
    pub requests: u64,
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The database could not be read, or the copy not written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The copy's file could not be made or kept.
    #[error("{}: {error}", path.display())]
    File {
        /// Which file or folder.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// There is something under that name, and it may be the only back-up.
    #[error("{} is there already, and is not overwritten", .0.display())]
    Occupied(PathBuf),
    /// What was copied is damaged.
    #[error("the copy is not sound: {0}")]
    Damaged(String),
}

impl From<rusqlite::Error> for BackupError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Copies a SQLite database that may be in use. Everything that was committed before is in the copy.
pub fn back_up(from: &Path, to: &Path) -> Result<BackupSummary, BackupError> {
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::Occupied(to.to_owned()));
    }
    let partial = PartialFile::create(to)?;
    let original = open(from)?;
    original.execute("VACUUM INTO ?1", [partial.name()?])?;
    let copy = open(&partial.path)?;
    if let Some(fault) = faults(&copy)?.into_iter().next() {
        return Err(BackupError::Damaged(fault));
    }
    let requests = copy.query_row("SELECT count(*) FROM requests", [], |row| row.get(0))?;
    drop(copy);
    Ok(BackupSummary { bytes: partial.persist(to)?, requests })
}

fn open(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// A copy under another name than it will have; gone when this is dropped.
struct PartialFile {
    path: PathBuf,
}

impl PartialFile {
    /// Makes it empty, for nobody else to read: digests and addresses are in it.
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

    /// Gives the copy its name once all of it is on the disk; says how large it is.
    fn persist(&self, to: &Path) -> Result<u64, BackupError> {
        let kept = || {
            let file = File::open(&self.path)?;
            file.sync_all()?;
            std::fs::rename(&self.path, to)?;
            let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()?;
            Ok(file.metadata()?.len())
        };
        kept().map_err(|error| BackupError::File { path: to.to_owned(), error })
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // it is gone already if it was kept
    }
}
