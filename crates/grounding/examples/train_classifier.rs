//! Trains the classifier of questions and tasks (`helpful::classifier`) on the labelled rows of `data/`.
//!
//!     cargo run --profile quick -p grounding --example train_classifier -- ENCODER

use std::error::Error;
use std::path::Path;

use grounding::helpful::train;
use grounding::index::SentenceEncoder;
use grounding::scorer::load_labelled;

fn main() -> Result<(), Box<dyn Error>> {
    let encoder = std::env::args_os().nth(1).ok_or("the encoder's file is missing")?;
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut rows = load_labelled(&home.join("data"), "train-")?;
    rows.extend(load_labelled(&home.join("data"), "own-")?);
    let model = train(&SentenceEncoder::load(Path::new(&encoder))?, &rows);
    std::fs::write(home.join("src/helpful/classifier.bin"), model)?;
    println!("{} rows", rows.len());
    Ok(())
}
