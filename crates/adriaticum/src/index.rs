//! The `index` commands. The database stores the id of the index before the index is created, so that a lost
//! index is always noticed.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use chat::{Message, Role};
use format::{count, number};
use grounding::Grounder;
use grounding::index::{
    AddOptions, AddReport, ChildProgram, Collection, FileRank, Hit, Index, IndexError, IndexId, Indexer, QuestionVector,
};
use grounding::scorer::Scorer;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::IndexCommand;
use crate::embedder;
use crate::error::CliError;
use crate::grounding::usefulness;
use crate::output::{print_json, print_line, print_list, print_note};
use crate::progress::{ProgressOutput, Unit};
use crate::settings::Settings;
use crate::storage::open_store;

const MAX_SKIPPED_LISTED: usize = 20;

pub(crate) async fn run(settings: &Settings, command: IndexCommand) -> Result<(), CliError> {
    let indexer = Indexer::new(settings.index_folder());
    match command {
        IndexCommand::Add { folders, url } => {
            if url.is_some() && folders.len() > 1 {
                return Err(CliError::new("each folder needs a separate URL: add them one at a time with --url"));
            }
            let id = claim(settings, &indexer).await?;
            let options = AddOptions { url_prefix: url.map(checked_prefix).transpose()? };
            let indexer = indexer.with_new_id(id).with_child(own_program());
            let embedder = embedder::for_indexing(settings).await?;
            let indexer = indexer.with_embedder(embedder.as_ref().map(|own| own.embedder.clone()));
            folders.iter().try_for_each(|folder| add(&indexer, folder, &options))
        }
        IndexCommand::Extract => extract(),
        IndexCommand::Forget => forget(settings).await,
        IndexCommand::List { json } => {
            check(settings, &indexer).await?;
            list(&indexer, json)
        }
        IndexCommand::Search { question, document, json } => {
            check(settings, &indexer).await?;
            search(settings, &question, document.as_deref(), json).await
        }
        IndexCommand::Remove { folders } => folders.iter().try_for_each(|folder| remove(&indexer, folder)),
    }
}

/// The id of the index to add to, which the database expects from now on.
async fn claim(settings: &Settings, indexer: &Indexer) -> Result<IndexId, CliError> {
    let found = indexer.id().map_err(cli_error)?;
    let id = found.clone().unwrap_or_else(IndexId::random);
    let expected = IndexId::from(open_store(settings).await?.search_index().expect(id.as_str()).await?);
    match found {
        Some(found) if found != expected => Err(cli_error(IndexError::Replaced)),
        None if id != expected => {
            print_note("this installation had an index, which is missing: add each of its folders again");
            Ok(expected)
        }
        _ => Ok(expected),
    }
}

/// Fails if the index is not the one that the database expects.
pub(crate) async fn check(settings: &Settings, indexer: &Indexer) -> Result<(), CliError> {
    compare(open_store(settings).await?.search_index().expected().await?.map(IndexId::from), indexer)
}

/// Fails if the index is not the expected one.
pub(crate) fn compare(expected: Option<IndexId>, indexer: &Indexer) -> Result<(), CliError> {
    match (expected, indexer.id().map_err(cli_error)?) {
        (Some(_), None) => Err(cli_error(IndexError::Gone)),
        (Some(expected), Some(found)) if expected != found => Err(cli_error(IndexError::Replaced)),
        _ => Ok(()),
    }
}

async fn forget(settings: &Settings) -> Result<(), CliError> {
    match open_store(settings).await?.search_index().forget().await? {
        true => print_line("The expected index is forgotten. A running service follows within a second or two."),
        false => print_line("No index was expected."),
    }
}

/// Reads documents for `add`, in a separate process.
pub(crate) fn extract() -> Result<(), CliError> {
    Ok(grounding::index::serve_extraction()?)
}

fn own_program() -> ChildProgram {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("adriaticum"));
    ChildProgram::new(program, ["index", "extract"])
}

/// A URL that ends with a slash, or nothing.
fn checked_prefix(prefix: String) -> Result<String, CliError> {
    let is_web = url::Url::parse(&prefix).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match is_web || prefix.is_empty() {
        true if prefix.is_empty() || prefix.ends_with('/') => Ok(prefix),
        true => Ok(prefix + "/"),
        false => Err(CliError::new(format!("{prefix:?} is not a URL prefix, such as https://docs.example.org/"))),
    }
}

fn add(indexer: &Indexer, folder: &Path, options: &AddOptions) -> Result<(), CliError> {
    let name = folder.display().to_string();
    let mut bar: Option<ProgressOutput> = None;
    let report = indexer.add(folder, options, &mut |progress| {
        let total = progress.total as u64;
        bar.get_or_insert_with(|| ProgressOutput::new(&name, Unit::Files, total, 0)).set(progress.done as u64);
    });
    drop(bar);
    let report = report.map_err(cli_error)?;
    for (file, reason) in report.skipped.iter().take(MAX_SKIPPED_LISTED) {
        print_note(&format!("skipped {}: {reason}", file.display()));
    }
    if report.skipped.len() > MAX_SKIPPED_LISTED {
        print_note(&format!("… and {} more", report.skipped.len() - MAX_SKIPPED_LISTED));
    }
    print_line(&format!("{name}: {}", summary(&report)))
}

fn summary(report: &AddReport) -> String {
    let documents = report.added + report.changed + report.unchanged;
    if documents == 0 {
        return "no documents; Markdown, text, HTML and PDF files are read".into();
    }
    format!(
        "{} in {} ({} new, {} changed, {} unchanged, {} removed, {} skipped)",
        count(documents, "document"),
        count(report.passages, "passage"),
        number(report.added),
        number(report.changed),
        number(report.unchanged),
        number(report.removed),
        report.skipped.len(),
    )
}

fn remove(indexer: &Indexer, folder: &Path) -> Result<(), CliError> {
    let name = folder.display();
    match indexer.remove(folder).map_err(cli_error)? {
        Some(collection) => {
            print_line(&format!("{name}: removed from the index, {}.", count(collection.documents, "document")))
        }
        None => Err(CliError::new(format!("{name} is not indexed; `adriaticum index list` shows what is"))),
    }
}

fn list(indexer: &Indexer, json: bool) -> Result<(), CliError> {
    let collections = indexer.list().map_err(cli_error)?;
    let empty = "Nothing is indexed yet. Index a folder of documents with: adriaticum index add DIR";
    let headings = ["FOLDER", ">DOCUMENTS", ">PASSAGES", "CITED AS", "INDEXED"];
    print_list(&collections, json, collection_as_json, empty, headings, |collection| {
        [
            collection.folder.display().to_string(),
            number(collection.documents),
            number(collection.passages),
            collection.url_prefix.clone().unwrap_or_else(|| "local:".into()),
            collection.indexed_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        ]
    })
}

fn collection_as_json(collection: &Collection) -> Value {
    json!({
        "folder": collection.folder.display().to_string(),
        "url": collection.url_prefix,
        "documents": collection.documents,
        "passages": collection.passages,
        "bytes": collection.bytes,
        "indexed_at": collection.indexed_at.to_string(),
    })
}

/// A hit, with the figures that decide its place. Not a `Value`, which would widen the figures and so add digits.
#[derive(Serialize)]
struct JsonHit<'a> {
    url: &'a str,
    title: &'a str,
    score: f32,
    words: f32,
    meaning: Option<f32>,
    in_prompt: bool,
    text: &'a str,
}

pub(crate) fn open(settings: &Settings) -> Result<Option<Index>, CliError> {
    Index::open(&settings.index_folder()).map_err(cli_error)
}

const MAX_HITS: usize = 10;
const SNIPPET_CHARS: usize = 160;

/// The best passages for a question, by the configured embedder.
pub(crate) async fn hits(settings: &Settings, index: &Index, question: &str) -> Result<Vec<Hit>, CliError> {
    let vector = question_vector(settings, question).await?;
    index.search(question, vector.as_ref(), MAX_HITS).map_err(cli_error)
}

async fn question_vector(settings: &Settings, question: &str) -> Result<Option<QuestionVector>, CliError> {
    let embedder = embedder::for_searching(settings).await?;
    let vector = embedder.map(|own| own.embedder.question(question)).transpose();
    vector.map_err(|error| cli_error(IndexError::Embeddings(error)))
}

/// The URLs of the documents whose passages fit into a prompt.
pub(crate) fn in_prompt(settings: &Settings, hits: &[Hit]) -> HashSet<String> {
    let passages: Vec<_> = hits.iter().map(|hit| hit.passage.clone()).collect();
    let sources = Grounder::augment(&passages, settings.search.tokens).sources;
    sources.iter().map(|source| source.url().to_owned()).collect()
}

async fn search(settings: &Settings, question: &str, document: Option<&Path>, json: bool) -> Result<(), CliError> {
    let Some(index) = open(settings)? else {
        return Err(CliError::new(
            "nothing is indexed yet. Index a folder of documents with: adriaticum index add DIR",
        ));
    };
    let vector = question_vector(settings, question).await?;
    let hits = index.search(question, vector.as_ref(), MAX_HITS).map_err(cli_error)?;
    let messages = [Message::new(Role::User, question.to_owned()).map_err(|error| CliError::new(error.to_string()))?];
    let (_, is_used) = usefulness(settings, &messages, Scorer::new().score(&messages), &hits)?;
    let in_prompt = if is_used { in_prompt(settings, &hits) } else { HashSet::new() };
    if json {
        let hits = hits.iter().map(|Hit { passage, score, words, meaning, .. }| JsonHit {
            url: &passage.url,
            title: &passage.title,
            score: *score,
            words: *words,
            meaning: *meaning,
            in_prompt: in_prompt.contains(&passage.url),
            text: &passage.text,
        });
        return print_json(&hits.collect::<Vec<_>>());
    }
    if hits.is_empty() {
        print_line("No passage was found.")?;
    }
    for (place, Hit { passage, score, words, meaning, .. }) in (1..).zip(&hits) {
        let meaning = meaning.map_or("–".into(), |cosine| format!("{cosine:.2}"));
        let prompt = if in_prompt.contains(&passage.url) { ", in the prompt" } else { "" };
        print_line(&format!("{place}. {} ({})", passage.title, passage.url))?;
        print_line(&format!("   score {score:.2}: words {words:.2}, meaning {meaning}{prompt}"))?;
        let text: String = passage.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let cut = text.char_indices().nth(SNIPPET_CHARS).map_or(text.len(), |(end, _)| end);
        let dots = if cut < text.len() { "…" } else { "" };
        print_line(&format!("   {}{dots}", &text[..cut]))?;
    }
    if !is_used && !hits.is_empty() {
        print_line("None of them goes into a prompt; `adriaticum grounding explain QUESTION` says why.")?;
    }
    match document {
        Some(file) => {
            let file = std::fs::canonicalize(file).or_else(|_| std::path::absolute(file))?;
            let rank = index.rank(&file, question, vector.as_ref()).map_err(cli_error)?;
            print_line(&format!("{}: {}", file.display(), rank_reason(&rank, &hits)))
        }
        None => Ok(()),
    }
}

/// Why a file is, or is not, among the hits.
fn rank_reason(rank: &FileRank, hits: &[Hit]) -> String {
    let (best, last) = (hits.first().map_or(0.0, |hit| hit.score), hits.last().map_or(0.0, |hit| hit.score));
    match rank {
        FileRank::OutsideFolders => "it is in no folder that is indexed; add it with: adriaticum index add DIR".into(),
        FileRank::NotIndexed { folder } => {
            let folder = folder.display();
            format!(
                "it is not in the index. `adriaticum index add {folder}` reads files of the known formats, and names those \
                 that it cannot read"
            )
        }
        FileRank::NotNear { passages, meaning } => {
            let cosine =
                meaning.map_or_else(String::new, |cosine| format!("; the nearest has a meaning of {cosine:.2}"));
            format!("none of its {} is among the nearest{cosine}", count(*passages as u64, "passage"))
        }
        FileRank::Ranked { place, hit } if hits.contains(hit) => {
            format!("it is found, in place {place}, with a score of {:.2}", hit.score)
        }
        FileRank::Ranked { place, hit } => format!(
            "its best passage is in place {place} with a score of {:.2}, too far from the best with {best:.2}; the last \
             shown has {last:.2}",
            hit.score
        ),
    }
}

pub(crate) fn cli_error(error: IndexError) -> CliError {
    let remedy = match error {
        IndexError::Busy => " Wait for it to end, or stop it.",
        IndexError::NoSuchFolder { .. } => " Correct the path, or make it readable.",
        _ => "",
    };
    CliError::new(format!("{error}.{remedy}"))
}
