//! A short catalogue of models that answer well for their size. `model fetch` takes their names.

use std::sync::LazyLock;

use indicatif::DecimalBytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::hub::HubPath;
use crate::error::CliError;
use crate::output::{print_json, print_line};
use crate::table::Table;

/// Bytes in memory for each byte of the file: weights in the form that computes fastest, and the KV cache. Measured with
/// eight conversations: 676 MB for a file of 98 MB, 1,562 MB for one of 491 MB.
const MEMORY_PER_BYTE: f64 = 2.25;
const MEMORY_OF_PROGRAM: u64 = 450_000_000;
/// Of the free memory; the rest is for requests and the file cache.
const USABLE_MEMORY: f64 = 0.9;

#[derive(Deserialize)]
pub(super) struct CatalogueModel {
    pub(super) name: &'static str,
    parameters: &'static str,
    bytes: u64,
    licence: &'static str,
    good_for: &'static str,
    /// A file on the Hugging Face hub. `None` is the default model.
    path: Option<&'static str>,
}

pub(super) static CATALOGUE: LazyLock<Vec<CatalogueModel>> =
    LazyLock::new(|| serde_json::from_str(include_str!("catalogue.json")).expect("a test reads the catalogue"));

impl CatalogueModel {
    pub(super) fn find(name: &str) -> Result<&'static Self, CliError> {
        CATALOGUE.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
            let from = match name.contains(['/', '.']) {
                true => format!(" A file, a URL or a repository is named with --from: model fetch --from {name}."),
                false => String::new(),
            };
            CliError::new(format!(
                "there is no model {name} in the catalogue; `adriaticum model list` lists all.{from}"
            ))
        })
    }

    /// Where it is downloaded from; `None` for the default model, which is in a Python package.
    pub(super) fn hub_path(&self) -> Option<HubPath> {
        self.path.map(|path| HubPath::parse(path).expect("the catalogue's paths are of the hub's form"))
    }

    fn memory(&self) -> u64 {
        (self.bytes as f64 * MEMORY_PER_BYTE) as u64 + MEMORY_OF_PROGRAM
    }

    fn fits(&self, memory: u64) -> bool {
        self.memory() as f64 <= memory as f64 * USABLE_MEMORY
    }

    fn as_json(&self, free_memory: u64) -> Value {
        json!({
            "name": self.name,
            "parameters": self.parameters,
            "bytes": self.bytes,
            "licence": self.licence,
            "good_for": self.good_for,
            "memory": self.memory(),
            "fits": self.fits(free_memory),
        })
    }
}

/// Lists the catalogue, and whether each model fits into the free memory of this machine.
pub(super) fn list(json: bool) -> Result<(), CliError> {
    let free = engine::free_memory();
    if json {
        return print_json(&CATALOGUE.iter().map(|entry| entry.as_json(free)).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["NAME", ">PARAMETERS", ">DOWNLOAD", ">MEMORY", "FITS", "LICENCE", "GOOD FOR"]);
    for entry in CATALOGUE.iter() {
        table.row([
            entry.name.to_owned(),
            entry.parameters.to_owned(),
            DecimalBytes(entry.bytes).to_string(),
            format!("~{}", DecimalBytes(entry.memory())),
            if entry.fits(free) { "yes" } else { "no" }.to_owned(),
            entry.licence.to_owned(),
            entry.good_for.to_owned(),
        ]);
    }
    let free = DecimalBytes(free);
    print_line(&format!(
        "{table}\nThis machine has {free} of memory free. Download one with: adriaticum model fetch NAME\nAny other GGUF file \
         of the Llama, Qwen, Gemma, Mistral or Phi families: adriaticum model fetch --from PATH, URL or OWNER/REPO/FILE.gguf"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_a_unique_name_and_a_source() {
        let mut names: Vec<_> = CATALOGUE.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CATALOGUE.len());
        assert_eq!(CATALOGUE.iter().filter(|entry| entry.hub_path().is_none()).count(), 1);
    }

    #[test]
    fn a_model_fits_only_into_enough_memory() {
        let [small, large] = ["smollm2-135m", "qwen3-32b"].map(|name| CatalogueModel::find(name).unwrap());
        assert!(small.fits(1_000_000_000) && !small.fits(300_000_000));
        assert!(large.fits(64_000_000_000) && !large.fits(24_000_000_000));
    }

    #[test]
    fn an_unknown_name_is_an_error_with_a_hint() {
        let error = |name| CatalogueModel::find(name).err().unwrap().to_string();
        assert!(error("gpt-9").contains("`adriaticum model list`") && !error("gpt-9").contains("--from"));
        assert!(error("models/x.gguf").contains("model fetch --from models/x.gguf"));
    }
}
