//! The fraction of questions in `data/retrieval` with the right document among the first three sources: by words alone, by
//! vectors alone, by both, and as for a caller, with no sources if the documents do not help.
//!
//!     cargo run --profile quick -p grounding --example retrieval -- ENCODER [FOLDER…]
//!
//! With EMBEDDINGS_URL the vectors come from that server, with QUESTION_PREFIX and PASSAGE_PREFIX before its texts.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chat::{Message, Role};
use grounding::helpful::{Evidence, QuestionClassifier, last_turn};
use grounding::index::{
    AddOptions, Embedder, EmbeddingsServer, Hit, Index, IndexError, Indexer, Prefixes, SentenceEncoder,
};
use grounding::query;
use grounding::scorer::Scorer;
use serde::Deserialize;

const SOURCES: usize = 3;
const LIMIT: usize = 40;
const DEADLINE: Duration = Duration::from_secs(10);

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
    let encoder = Arc::new(SentenceEncoder::load(Path::new(&encoder))?);
    let (scorer, classifier) = (Scorer::new(), QuestionClassifier::new());
    let mut folders: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let embedder = match std::env::var("EMBEDDINGS_URL") {
        Ok(url) => {
            let prefix = |name: &str| std::env::var(name).unwrap_or_default();
            let prefixes = Prefixes { question: prefix("QUESTION_PREFIX"), passage: prefix("PASSAGE_PREFIX") };
            Embedder::Server(Arc::new(EmbeddingsServer::new(url.parse()?, None, prefixes, DEADLINE)?))
        }
        Err(_) => Embedder::Sentences(encoder.clone()),
    };
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
        let search = |query: &str, limit| {
            let vector = embedder.question(query).map_err(IndexError::Embeddings)?;
            opened.search(query, Some(&vector), limit)
        };
        measure("words", &questions, &|_, query| opened.search(query, None, LIMIT))?;
        measure("vectors", &questions, &|_, query| {
            let mut hits = search(query, 2 * LIMIT)?;
            hits.sort_by(|one, other| other.meaning.unwrap_or(-1.0).total_cmp(&one.meaning.unwrap_or(-1.0)));
            Ok(hits)
        })?;
        measure("both", &questions, &|_, query| search(query, LIMIT))?;
        measure("as given", &questions, &|messages, query| {
            let hits = search(query, LIMIT)?;
            let (score, turn) = (scorer.score(messages), encoder.vector(last_turn(messages)));
            let evidence = Evidence::new(score, &turn, &classifier, messages, &hits);
            let is_helpful = evidence.is_some_and(|evidence| evidence.is_helpful());
            Ok(if is_helpful { hits } else { Vec::new() })
        })?;
    }
    Ok(())
}

/// The first hits of a conversation.
type Search<'a> = &'a dyn Fn(&[Message], &str) -> Result<Vec<Hit>, IndexError>;

fn measure(name: &str, questions: &[Question], search: Search<'_>) -> Result<(), Box<dyn Error>> {
    let mut groups: BTreeMap<String, Counts> = BTreeMap::new();
    let began = Instant::now();
    for question in questions {
        let messages = question.messages.iter().map(|turn| {
            let role = Role::from_name(&turn.role).ok_or("no such role")?;
            Ok(Message::new(role, turn.content.clone()).map_err(|error| error.to_string())?)
        });
        let messages = messages.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        let hits = match query::derive_for_index(&messages) {
            Some(query) => search(&messages, &query)?,
            None => Vec::new(),
        };
        let is_right = |hit: &Hit| question.documents.iter().any(|document| hit.passage.url.ends_with(document));
        let right = hits.iter().take(SOURCES).any(is_right);
        for group in [question.kind.clone(), format!("{} {}", question.kind, question.lang)] {
            let counts = groups.entry(group).or_default();
            counts.all += 1;
            counts.given += usize::from(!hits.is_empty());
            counts.right += usize::from(right);
        }
    }
    println!("  {name} ({:.1?} each)", began.elapsed() / u32::try_from(questions.len())?);
    for (group, Counts { all, given, right }) in groups {
        let share = |count: usize| count as f64 / all as f64;
        println!("    {group:<14} {all:>3}  sources {:.2}  right {:.2}", share(given), share(right));
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    all: usize,
    /// Questions with any source.
    given: usize,
    right: usize,
}
