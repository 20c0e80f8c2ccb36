//! The place of the model in the data folder, and how one gets there: whole, or not at all.
//!
//! Whoever holds a `Place` is the only one at work on it. A model in use is never written to: a new one is made beside
//! it, looked at, brought to the disk and then given its name.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use indicatif::DecimalBytes;
use sha2::{Digest, Sha256};

use super::gguf::Summary;
use super::look_at;
use crate::error::CliError;

/// What the model is called in the data folder.
pub(super) use crate::settings::MODEL_FILE as MODEL;
const FRESH: &str = "model.gguf.new";
const LOCK: &str = "model.lock";

/// The place of the model, while nobody else may change it.
pub(super) struct Place {
    folder: PathBuf,
    _lock: File,
}

impl Place {
    /// Makes the folder if need be, and keeps others out.
    pub(super) fn take(folder: &Path) -> Result<Self, CliError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| unwritable(folder, &error))?;
        let path = folder.join(LOCK);
        loop {
            let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
            let lock = opened.map_err(|error| unwritable(&path, &error))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let folder = folder.display();
                    return Err(CliError::new(format!(
                        "another `model fetch` is at work in {folder}. Wait for it to end, or stop it."
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(unwritable(&path, &error)),
            }
            // Whoever held it before has removed the file at the end: it may have been that one.
            let same = |there: fs::Metadata| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino());
            if fs::metadata(&path).is_ok_and(same) {
                return Ok(Self { folder: folder.to_owned(), _lock: lock });
            }
        }
    }

    /// Where the model is, or will be.
    pub(super) fn model(&self) -> PathBuf {
        self.folder.join(MODEL)
    }

    /// Where what has arrived of a download is kept; the key tells downloads apart.
    pub(super) fn part(&self, key: &str) -> PathBuf {
        self.folder.join(format!("model-{key}.part"))
    }

    /// A new, empty file that may become the model.
    pub(super) fn fresh(&self) -> Result<Candidate<'_>, CliError> {
        let path = self.folder.join(FRESH);
        let made = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path);
        let file = made.map_err(|error| unwritable(&path, &error))?;
        Ok(Candidate { place: self, path, file })
    }

    /// A download that is the model itself.
    pub(super) fn adopt(&self, path: PathBuf) -> Result<Candidate<'_>, CliError> {
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| unwritable(&path, &error))?;
        Ok(Candidate { place: self, path, file })
    }

    /// Is there room for so many more bytes?
    pub(super) fn room_for(&self, bytes: u64) -> Result<(), CliError> {
        let Ok(disk) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free >= bytes {
            return Ok(());
        }
        let (folder, free, bytes) = (self.folder.display(), DecimalBytes(free), DecimalBytes(bytes));
        Err(CliError::new(format!(
            "{bytes} are needed in {folder} and {free} are free. Free some, or set `data_dir` to a folder on another disk."
        )))
    }

    /// Removes what earlier fetches have left. It is in nobody's way, so that it need not succeed.
    fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == FRESH || (name.starts_with("model-") && name.ends_with(".part")) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // While it is still held, so that nobody can have taken it in between.
        let _ = fs::remove_file(self.folder.join(LOCK));
    }
}

/// A file that becomes the model if it is fit to be one, and is gone otherwise.
pub(super) struct Candidate<'a> {
    place: &'a Place,
    path: PathBuf,
    /// The file, open for reading and writing.
    pub(super) file: File,
}

impl Candidate<'_> {
    /// Where it is for now.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it the model's place, if it is a model.
    pub(super) fn install(self) -> Result<Summary, CliError> {
        let summary = look_at(&self.path)?;
        let model = self.place.model();
        let installed = self.file.sync_all().and_then(|()| fs::rename(&self.path, &model));
        installed.map_err(|error| unwritable(&model, &error))?;
        // The new name must be as lasting as the file; where a folder cannot be synced, it is as good as it gets.
        let _ = File::open(&self.place.folder).and_then(|folder| folder.sync_all());
        self.place.tidy();
        Ok(summary)
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // not there any more if it was installed
    }
}

/// What to say when something in the data folder cannot be written.
pub(super) fn unwritable(path: &Path, error: &io::Error) -> CliError {
    let path = path.display();
    CliError::new(if is_full(error) {
        format!("{path} cannot be written: the disk is full. Free some room, or set `data_dir` to a folder on another.")
    } else {
        format!("{path} cannot be written: {error}. Make its folder writable, or set `data_dir` to another.")
    })
}

/// Is it for lack of room?
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The SHA-256 digest of a file, in hexadecimal.
pub(super) fn sha256(path: &Path) -> io::Result<String> {
    let (mut file, mut digest, mut piece) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(base16ct::lower::encode_string(&digest.finalize())),
            length => digest.update(&piece[..length]),
        }
    }
}
