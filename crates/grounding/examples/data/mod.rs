//! The labelled rows beside the crate, for whoever trains, judges or measures the scorer: examples and tests.

use std::error::Error;
use std::path::Path;

use grounding::scorer::{LabelledRequest, parse_labelled};

/// The rows of every file whose name begins so, in the order of the names.
pub(crate) fn read(beginning: &str) -> Result<Vec<LabelledRequest>, Box<dyn Error>> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let entries = std::fs::read_dir(home)?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<_> = entries.iter().map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(beginning) && name.ends_with(".jsonl")
    });
    files.sort();
    let mut found = Vec::new();
    for file in files {
        for row in parse_labelled(&std::fs::read_to_string(&file)?) {
            found.push(row.map_err(|error| format!("{}: {error}", file.display()))?);
        }
    }
    Ok(found)
}
