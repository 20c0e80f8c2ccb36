//! The form of the weights that suits this machine.
//!
//! A card with memory to spare may compute faster with 16 bits than with 4, whose kernels first have to unpack them. The
//! converted copy is stored in the data folder; the model's file is never changed. On CPUs our kernels lay the weights out
//! in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use kernels::WeightsForm;
use serde::{Deserialize, Serialize};

use crate::model::backend;
use crate::tuning::cpus;

/// Which form of the weights is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsChoice {
    /// Another form than the file's if it is faster on this machine and as exact.
    Auto,
    /// The file's form.
    File,
    /// Always Q8_0.
    Q8_0,
    /// Always BF16.
    Bf16,
}

impl WeightsChoice {
    /// The form that must be used.
    pub(crate) fn wanted_form(self) -> Option<WeightsForm> {
        match self {
            Self::Auto | Self::File => None,
            Self::Q8_0 => Some(WeightsForm::Q8_0),
            Self::Bf16 => Some(WeightsForm::Bf16),
        }
    }
}

/// A copy of a model in another form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Converted {
    pub(crate) path: PathBuf,
    bytes: u64,
    modified_micros: u64,
}

impl Converted {
    /// Converts a model, and stores the copy of about `bytes` in a folder. `reserve` bytes of the disk must stay free.
    pub(crate) fn make(
        model: &Path,
        folder: &Path,
        form: WeightsForm,
        bytes: u64,
        reserve: u64,
    ) -> std::io::Result<Self> {
        let path = Self::path(model, folder, form)?;
        let next = path.with_extension("gguf.next");
        for file in [&path, &next] {
            let _ = fs::remove_file(file); // of another file, or of a start that was interrupted
        }
        let disk = rustix::fs::statvfs(folder)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if bytes + reserve > free {
            let [needed, free] = [bytes + reserve, free].map(|bytes| bytes as f64 / 1e9);
            let sentence = format!("a copy needs {needed:.1} GB of free disk space; {free:.1} GB are free");
            return Err(std::io::Error::other(sentence));
        }
        let failed = |_| std::io::Error::other("llama.cpp could not convert it (see its messages in the log)");
        backend().map_err(std::io::Error::other)?;
        let converted = kernels::convert(model, &next, form, cpus()).map_err(failed);
        if let Err(error) = converted.and_then(|()| fs::File::open(&next)?.sync_all()) {
            let _ = fs::remove_file(&next); // there may be none
            return Err(error);
        }
        fs::rename(&next, &path)?;
        let (bytes, modified_micros) = size_and_modified_micros(&path)?;
        Ok(Self { path, bytes, modified_micros })
    }

    fn path(model: &Path, folder: &Path, form: WeightsForm) -> std::io::Result<PathBuf> {
        let form_name = match form {
            WeightsForm::Q8_0 => "q8_0",
            WeightsForm::Bf16 => "bf16",
        };
        let folder = fs::canonicalize(folder)?; // so that the path holds from any working directory
        Ok(folder.join(model.file_name().unwrap_or_default()).with_extension(format!("{form_name}.gguf")))
    }

    /// Whether this is where a model's copy in a form would be stored.
    pub(crate) fn is_of(&self, model: &Path, folder: &Path, form: WeightsForm) -> bool {
        Self::path(model, folder, form).is_ok_and(|path| path == self.path)
    }

    /// Whether the file has not changed since it was written.
    pub(crate) fn is_intact(&self) -> bool {
        size_and_modified_micros(&self.path).is_ok_and(|found| found == (self.bytes, self.modified_micros))
    }

    pub(crate) fn remove(self) {
        let _ = fs::remove_file(self.path); // a file that stays only uses disk space
    }
}

#[cfg(test)]
impl Converted {
    pub(crate) fn of_test(path: &Path) -> Self {
        fs::write(path, "a copy").unwrap();
        let (bytes, modified_micros) = size_and_modified_micros(path).unwrap();
        Self { path: path.into(), bytes, modified_micros }
    }
}

pub(crate) fn size_and_modified_micros(path: &Path) -> std::io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((metadata.len(), modified.as_micros() as u64))
}
