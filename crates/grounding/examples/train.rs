//! `make scorer`: trains the scorer on the labelled rows in `data/`, writes its model, and evaluates it on `dev.jsonl`
//! and `held-out.jsonl`.

use std::error::Error;
use std::path::Path;

use grounding::scorer::{Evaluation, Scorer, evaluate_by_author, load_labelled, train};

fn main() -> Result<(), Box<dyn Error>> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |prefix: &str| load_labelled(&home.join("data"), prefix);
    let (given, own) = (read("train-")?, read("own-")?);
    println!("{} labelled rows, {} of our own", given.len(), own.len());
    let report = train(&given, &own);
    println!("\nRows judged by models that have not seen them (five parts, conversations kept together):\n");
    println!("{}", report.unseen);
    println!("Rows judged by models that have not seen any row of their authors:\n");
    println!("{}", evaluate_by_author(&given, &own));
    let file = home.join("src/scorer/model.bin");
    let same = std::fs::read(&file).is_ok_and(|before| before == report.model);
    std::fs::write(&file, &report.model)?;
    println!("{} ({})", file.display(), if same { "the same bytes as before" } else { "changed" });

    let scorer = Scorer::with_model(&report.model).ok_or("the new model cannot be read")?;
    for set in ["dev", "held-out"] {
        let mut evaluation = Evaluation::default();
        for row in read(set)? {
            let label = row.required.ok_or_else(|| format!("{} has no label", row.id))?;
            evaluation.add(&row.lang, &row.category, label, scorer.score(&row.messages).is_required());
        }
        println!("\n{set}.jsonl:\n\n{evaluation}");
    }
    Ok(())
}
