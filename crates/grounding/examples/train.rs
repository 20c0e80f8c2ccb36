//! Trains the scorer from the labelled rows in `data/`, writes its model, and judges it on `dev.jsonl`: `make scorer`.

use std::error::Error;
use std::path::Path;

use grounding::scorer::{Judgement, Labelled, Scorer, rows, train};

fn main() -> Result<(), Box<dyn Error>> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (given, own) = (read(home, "train-")?, read(home, "own-")?);
    println!("{} labelled rows, {} of our own", given.len(), own.len());
    let report = train(&given, &own);
    println!("\nRows judged by models that have not seen them (five parts, conversations kept together):\n");
    println!("{}", report.unseen);
    let file = home.join("src/scorer/model.bin");
    let same = std::fs::read(&file).is_ok_and(|before| before == report.model);
    std::fs::write(&file, &report.model)?;
    println!("{} ({})", file.display(), if same { "the same bytes as before" } else { "changed" });

    let scorer = Scorer::with_model(&report.model).ok_or("the new model cannot be read")?;
    let mut judgement = Judgement::default();
    for row in read(home, "dev")? {
        let label = row.required.ok_or("a row of dev.jsonl has no label")?;
        judgement.add(&row.lang, &row.category, label, scorer.score(&row.messages).is_required());
    }
    println!("\ndev.jsonl:\n\n{judgement}");
    Ok(())
}

/// The rows of every file whose name begins so, in the order of the names.
fn read(home: &Path, beginning: &str) -> Result<Vec<Labelled>, Box<dyn Error>> {
    let entries = std::fs::read_dir(home.join("data"))?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<_> = entries.iter().map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(beginning) && name.ends_with(".jsonl")
    });
    files.sort();
    let mut found = Vec::new();
    for file in files {
        for row in rows(&std::fs::read_to_string(&file)?) {
            found.push(row.map_err(|error| format!("{}: {error}", file.display()))?);
        }
    }
    Ok(found)
}
