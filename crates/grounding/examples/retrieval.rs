//! How often the right document is among the first three sources, for the questions in `data/retrieval`: by words alone, by
//! vectors alone and by both.
//!
//!     cargo run --release -p grounding --example retrieval -- ENCODER [FOLDER…]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use chat::{Message, Role};
use grounding::index::{AddOptions, Embedder, Hit, Index, IndexError, Indexer};
use grounding::query;
use serde::Deserialize;

const SOURCES: usize = 3;

#[derive(Deserialize)]
struct Question {
    lang: String,
    kind: String,
    documents: Vec<String>,
    messages: Vec<Turn>,
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let encoder = arguments.next().ok_or("the encoder's file is missing")?;
    let embedder = Arc::new(Embedder::load(Path::new(&encoder))?);
    let mut folders: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    if folders.is_empty() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/retrieval");
        folders = ["a", "b"].map(|set| data.join(set)).to_vec();
    }
    for folder in folders {
        let index = tempfile::tempdir()?;
        let indexer = Indexer::new(index.path()).with_embedder(Some(embedder.clone()));
        let began = Instant::now();
        let report = indexer.add(&folder.join("documents"), &AddOptions::default(), &mut |_| ())?;
        println!("{}: {} passages in {:.2?}", folder.display(), report.passages, began.elapsed());
        let text = std::fs::read_to_string(folder.join("questions.jsonl"))?;
        let questions = text.lines().map(serde_json::from_str).collect::<Result<Vec<Question>, _>>()?;
        let opened = Index::open(index.path())?.ok_or("no index")?;
        let search = |query: &str, limit| opened.search(query, Some(&embedder.question(query)), limit);
        measure("words", &questions, |query| opened.search(query, None, 40))?;
        measure("vectors", &questions, |query| {
            let mut hits = search(query, 80)?;
            hits.sort_by(|one, other| other.meaning.unwrap_or(-1.0).total_cmp(&one.meaning.unwrap_or(-1.0)));
            Ok(hits)
        })?;
        measure("both", &questions, |query| search(query, 40))?;
    }
    Ok(())
}

fn measure(
    name: &str,
    questions: &[Question],
    search: impl Fn(&str) -> Result<Vec<Hit>, IndexError>,
) -> Result<(), Box<dyn Error>> {
    let mut found: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let began = Instant::now();
    for question in questions.iter().filter(|question| !question.documents.is_empty()) {
        let messages = question.messages.iter().map(|turn| {
            let role = Role::from_name(&turn.role).ok_or("no such role")?;
            Ok(Message::new(role, turn.content.clone()).map_err(|error| error.to_string())?)
        });
        let messages = messages.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        let hits = search(&query::derive_for_index(&messages).unwrap_or_default())?;
        let is_right = |hit: &Hit| question.documents.iter().any(|document| hit.passage.url.ends_with(document));
        let right = hits.iter().take(SOURCES).any(is_right);
        for group in [question.kind.clone(), format!("{} {}", question.kind, question.lang)] {
            let (rights, all) = found.entry(group).or_default();
            (*rights, *all) = (*rights + usize::from(right), *all + 1);
        }
    }
    let asked = questions.len();
    println!("  {name} ({:.1?} each)", began.elapsed() / u32::try_from(asked)?);
    for (group, (rights, all)) in found {
        println!("    {group:<14} {rights:>3} of {all:>3}  {:.2}", rights as f64 / all as f64);
    }
    Ok(())
}
