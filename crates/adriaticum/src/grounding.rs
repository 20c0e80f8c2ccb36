//! The grounder that the settings ask for, the index that the database expects, and the `grounding` commands.

use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chat::{Message, Role};
use grounding::helpful::{Evidence, QuestionClassifier, last_turn};
use grounding::index::{IndexError, IndexId, Indexer};
use grounding::scorer::{self, Evaluation, Scorer};
use grounding::search::{RemoteSearch, SearchUrl};
use grounding::{Embedders, Grounder, LocalSearch, Mode, Search, query};
use serde::Serialize;
use store::Store;
use tokio::sync::watch;

use crate::cli::GroundingCommand;
use crate::error::CliError;
use crate::settings::Settings;
use crate::{embedder, index};

/// How often the database is asked which index it expects: a command on another machine may have made the first one.
const EXPECTED_INDEX_INTERVAL: Duration = Duration::from_secs(1);

/// The index that the database expects. One that is there while none is expected is expected from then on.
pub(crate) async fn expected_index(store: &Store, indexer: &Indexer) -> Result<Option<IndexId>, CliError> {
    if let Some(id) = store.expected_index().await? {
        return Ok(Some(id.into()));
    }
    match indexer.id() {
        Ok(Some(id)) => Ok(Some(store.expect_index(id.as_str()).await?.into())),
        // What cannot be read is reported by the search.
        Ok(None) | Err(_) => Ok(None),
    }
}

/// Keeps `expected` up to date, as long as anything reads it. While the database does not answer, what it said last
/// holds.
pub(crate) async fn follow_expected_index(
    store: Arc<Store>,
    indexer: Indexer,
    expected: watch::Sender<Option<IndexId>>,
) {
    while !expected.is_closed() {
        tokio::time::sleep(EXPECTED_INDEX_INTERVAL).await;
        if let Ok(id) = expected_index(&store, &indexer).await {
            expected.send_if_modified(|known| std::mem::replace(known, id.clone()) != id);
        }
    }
}

/// None if `grounding` is off.
pub(crate) fn grounder(
    settings: &Settings,
    expected: watch::Receiver<Option<IndexId>>,
    embedders: Embedders,
) -> Result<Option<Grounder>, CliError> {
    let Some(mode) = settings.grounding else { return Ok(None) };
    let local = || {
        let search = LocalSearch::new(settings.index_folder(), expected.clone(), settings.search.timeout);
        search.with_embedders(embedders.clone())
    };
    let search = match (&settings.search.url, mode) {
        (Some(SearchUrl::Remote(url)), _) => {
            let remote = RemoteSearch::new(url.clone(), settings.search.timeout);
            let remote = remote.map_err(|error| CliError::new(format!("Search cannot be used: {error}")))?;
            Search::Remote(Box::new(remote))
        }
        (None, Mode::Auto) => Search::IfIndexed(local()),
        (Some(SearchUrl::Local), _) | (None, Mode::Always) => Search::Local(local()),
    };
    Ok(Some(Grounder::new(mode, search, settings.search.tokens)))
}

/// The value of the setting `grounding`.
pub(crate) fn mode(settings: &Settings) -> &'static str {
    match settings.grounding {
        None => "off",
        Some(Mode::Auto) => "auto",
        Some(Mode::Always) => "always",
    }
}

pub(crate) async fn run(settings: &Settings, command: GroundingCommand) -> Result<(), CliError> {
    match command {
        GroundingCommand::Score { file } => score(&file),
        GroundingCommand::Judge { file } => judge(&file),
        GroundingCommand::Explain { text } => explain(settings, text).await,
    }
}

#[derive(Serialize)]
struct Scored<'a> {
    id: &'a str,
    required: bool,
    score: f64,
    reasons: Vec<String>,
}

fn score(file: &Path) -> Result<(), CliError> {
    let text = read(file)?;
    let scorer = Scorer::new();
    let mut out = BufWriter::new(std::io::stdout().lock());
    for row in scorer::parse_labelled(&text) {
        let row = row.map_err(|error| CliError::new(format!("{}, {error}", file.display())))?;
        let (score, reasons) = scorer.explain(&row.messages);
        let scored = Scored { id: &row.id, required: score.is_required(), score: format::score(score.get()), reasons };
        serde_json::to_writer(&mut out, &scored).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

fn judge(file: &Path) -> Result<(), CliError> {
    let text = read(file)?;
    let scorer = Scorer::new();
    let mut evaluation = Evaluation::default();
    for row in scorer::parse_labelled(&text) {
        let row = row.map_err(|error| CliError::new(format!("{}, {error}", file.display())))?;
        let label = row.required.ok_or_else(|| {
            CliError::new(format!("{}: {} has no `required` label to compare with", file.display(), row.id))
        })?;
        evaluation.add(&row.lang, &row.category, label, scorer.score(&row.messages).is_required());
    }
    Ok(write!(std::io::stdout(), "{evaluation}")?)
}

async fn explain(settings: &Settings, text: String) -> Result<(), CliError> {
    let message = Message::new(Role::User, text).map_err(|error| CliError::new(format!("the message {error}")))?;
    let messages = [message];
    let (score, reasons) = Scorer::new().explain(&messages);
    let mut out = std::io::stdout().lock();
    let verdict = if score.is_required() { "needs facts" } else { "needs no facts" };
    writeln!(out, "{verdict} (score {:.3}, scorer {})", score.get(), scorer::VERSION)?;
    for reason in reasons {
        writeln!(out, "  - {reason}")?;
    }
    match query::derive(&messages) {
        Some(query) if score.is_required() => writeln!(out, "Search query: {query}")?,
        None if score.is_required() => {
            writeln!(out, "No search query is left: the message is only code or personal data")?
        }
        _ => {}
    }
    let is_asked = settings.grounding.is_some() && matches!(settings.search.url, None | Some(SearchUrl::Local));
    let index = if is_asked { index::open(settings)?.zip(embedder::sentence_encoder(settings)?) } else { None };
    if let Some((index, encoder)) = index {
        let query = query::derive_for_index(&messages).unwrap_or_default();
        let embedder = embedder::for_searching(settings).await?;
        let vector = embedder.map(|own| own.embedder.question(&query)).transpose();
        let vector = vector.map_err(|error| index::cli_error(IndexError::Embeddings(error)))?;
        let hits = index.search(&query, vector.as_ref(), 1).map_err(index::cli_error)?;
        let turn = encoder.vector(last_turn(&messages));
        match (hits.first(), Evidence::new(score, &turn, &QuestionClassifier::new(), &messages, &hits)) {
            (Some(hit), Some(evidence)) => {
                let verdict = if evidence.is_helpful() { "help" } else { "do not help" };
                let (sum, question) = (evidence.sum(), evidence.question);
                writeln!(
                    out,
                    "The indexed documents {verdict}: {sum:+.1} (a question or a problem, not a task: {question:+.1})"
                )?;
                writeln!(out, "Best passage: {}, score {:.2}", hit.passage.url, hit.score)?;
            }
            _ => writeln!(out, "The indexed documents have no vectors yet: add their folders again")?,
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<String, CliError> {
    let wrong = |error: std::io::Error| CliError::new(format!("{} cannot be read: {error}", file.display()));
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(wrong)?;
        return Ok(text);
    }
    std::fs::read_to_string(file).map_err(wrong)
}
