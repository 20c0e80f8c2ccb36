//! The model in the data folder, which is installed whole or not at all.
//!
//! `ModelDir` is a lock: only one process changes the model at a time. A model in use is never written to: a new one is
//! written beside it, checked, synced and then renamed.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use indicatif::DecimalBytes;
use sha2::{Digest, Sha256};

use super::gguf::Summary;
use super::inspect;
use crate::error::CliError;

pub(super) use crate::settings::MODEL_FILE;
const CANDIDATE_FILE: &str = "model.gguf.new";
const LOCK_FILE: &str = "model.lock";

/// The locked folder. Dropping it releases the lock.
pub(super) struct ModelDir {
    folder: PathBuf,
    _lock: File,
}

impl ModelDir {
    /// Creates the folder if needed and locks it; an error if another process holds the lock.
    pub(super) fn lock(folder: &Path) -> Result<Self, CliError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.map_err(|error| write_error(folder, &error))?;
        let path = folder.join(LOCK_FILE);
        loop {
            let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
            let lock = opened.map_err(|error| write_error(&path, &error))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let folder = folder.display();
                    return Err(CliError::new(format!(
                        "another `model fetch` is running in {folder}. Wait for it to end, or stop it."
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(write_error(&path, &error)),
            }
            // The previous holder removes the file when it is done, so the lock may be on a removed file.
            let same = |there: fs::Metadata| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino());
            if fs::metadata(&path).is_ok_and(same) {
                return Ok(Self { folder: folder.to_owned(), _lock: lock });
            }
        }
    }

    pub(super) fn model_path(&self) -> PathBuf {
        self.folder.join(MODEL_FILE)
    }

    /// The file of a partial download; `key` identifies what is downloaded.
    pub(super) fn part_path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("model-{key}.part"))
    }

    /// A new, empty candidate.
    pub(super) fn create_candidate(&self) -> Result<Candidate<'_>, CliError> {
        let path = self.folder.join(CANDIDATE_FILE);
        let created = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path);
        let file = created.map_err(|error| write_error(&path, &error))?;
        Ok(Candidate { model_dir: self, path, file })
    }

    /// A finished download as a candidate.
    pub(super) fn open_candidate(&self, path: PathBuf) -> Result<Candidate<'_>, CliError> {
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| write_error(&path, &error))?;
        Ok(Candidate { model_dir: self, path, file })
    }

    /// An error unless the disk has that many bytes free.
    pub(super) fn require_free_space(&self, bytes: u64) -> Result<(), CliError> {
        let Ok(disk) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free >= bytes {
            return Ok(());
        }
        let (folder, free, bytes) = (self.folder.display(), DecimalBytes(free), DecimalBytes(bytes));
        Err(CliError::new(format!(
            "{bytes} of disk space are needed in {folder} and {free} are free. Free some, or set `data_dir` to a \
             folder on another disk."
        )))
    }

    /// Removes files of earlier fetches. Failures do not matter.
    fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == CANDIDATE_FILE || (name.starts_with("model-") && name.ends_with(".part")) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for ModelDir {
    fn drop(&mut self) {
        // Before the lock is released, so that no other process's lock file is removed.
        let _ = fs::remove_file(self.folder.join(LOCK_FILE));
    }
}

/// A file that becomes the model when it is installed, and is removed otherwise.
pub(super) struct Candidate<'a> {
    model_dir: &'a ModelDir,
    path: PathBuf,
    pub(super) file: File,
}

impl Candidate<'_> {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// An error unless the file has that digest. Without a digest, every file is accepted.
    pub(super) fn require_sha256(&self, name: &str, expected: Option<&str>) -> Result<(), CliError> {
        let Some(expected) = expected else { return Ok(()) };
        let digest = sha256_file(&self.path).map_err(|error| write_error(&self.path, &error))?;
        match digest == expected {
            true => Ok(()),
            false => Err(CliError::new(format!(
                "{name} is not the expected file: its SHA-256 is {digest} where {expected} was expected. It was not kept. \
                 Run the command again."
            ))),
        }
    }

    /// Checks that it is a model, syncs it and renames it into place.
    pub(super) fn install(self) -> Result<Summary, CliError> {
        let summary = inspect(&self.path)?;
        let model = self.model_dir.model_path();
        let installed = self.file.sync_all().and_then(|()| fs::rename(&self.path, &model));
        installed.map_err(|error| write_error(&model, &error))?;
        // Makes the new name durable, where the file system can sync a folder.
        let _ = File::open(&self.model_dir.folder).and_then(|folder| folder.sync_all());
        self.model_dir.remove_leftovers();
        Ok(summary)
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // fails if it was installed
    }
}

pub(super) fn write_error(path: &Path, error: &io::Error) -> CliError {
    let path = path.display();
    CliError::new(if is_disk_full(error) {
        format!(
            "{path} cannot be written: the disk is full. Free some space, or set `data_dir` to a folder on another \
             disk."
        )
    } else {
        format!("{path} cannot be written: {error}. Make its folder writable, or set `data_dir` to another.")
    })
}

pub(super) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The SHA-256 of a file in hex.
pub(super) fn sha256_file(path: &Path) -> io::Result<String> {
    let (mut file, mut digest, mut chunk) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(base16ct::lower::encode_string(&digest.finalize())),
            length => digest.update(&chunk[..length]),
        }
    }
}
