//! The addresses of this installation's running services. Each service holds a locked file in the data folder, by which
//! `check` distinguishes it from other programs without a request.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Around the random part of a file's name.
const PREFIX: &str = "serve-";
const SUFFIX: &str = ".addresses";

/// The file of this process; removed on drop.
pub(crate) struct RunningService {
    _locked: NamedTempFile,
}

impl RunningService {
    /// Creates the file of this process, and removes those of crashed services.
    pub(crate) fn announce(data_dir: &Path, addresses: &[SocketAddr]) -> std::io::Result<Self> {
        for (path, file) in files(data_dir) {
            if file.try_lock().is_ok() {
                let _ = std::fs::remove_file(path);
            }
        }
        // Only this user can read it.
        let mut file = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).tempfile_in(data_dir)?;
        file.as_file().lock()?;
        addresses.iter().try_for_each(|address| writeln!(file, "{address}"))?;
        Ok(Self { _locked: file })
    }
}

/// The addresses of the running services of this installation.
pub(crate) fn addresses(data_dir: &Path) -> Vec<SocketAddr> {
    let is_locked = |file: &File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    let mut text = String::new();
    for (_, mut file) in files(data_dir).filter(|(_, file)| is_locked(file)) {
        let _ = file.read_to_string(&mut text); // an unreadable file is not ours
    }
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn files(data_dir: &Path) -> impl Iterator<Item = (PathBuf, File)> {
    let is_ours = |name: &str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
    let entries = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
    let paths = entries.filter(move |entry| entry.file_name().to_str().is_some_and(is_ours)).map(|entry| entry.path());
    paths.filter_map(|path| File::open(&path).ok().map(|file| (path, file)))
}
