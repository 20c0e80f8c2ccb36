//! The configured grounder, the index that the database expects, and the `grounding` commands.

use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chat::{Message, Role};
use grounding::helpful::{Evidence, QuestionClassifier, last_turn};
use grounding::index::{Hit, IndexId, Indexer};
use grounding::scorer::{self, Evaluation, Score, Scorer};
use grounding::search::{RemoteSearch, SearchUrl};
use grounding::{Embedders, Grounder, LocalSearch, Mode, Search, query};
use serde_json::json;
use store::Store;
use tokio::sync::watch;

use crate::cli::GroundingCommand;
use crate::error::CliError;
use crate::settings::Settings;
use crate::{embedder, index};

/// How often the expected index is read: a command on another machine may have created the first one.
const EXPECTED_INDEX_INTERVAL: Duration = Duration::from_secs(1);

/// The index that the database expects. If it expects none, it expects an existing index from now on.
pub(crate) async fn expected_index(store: &Store, indexer: &Indexer) -> Result<Option<IndexId>, CliError> {
    if let Some(id) = store.search_index().expected().await? {
        return Ok(Some(id.into()));
    }
    match indexer.id() {
        Ok(Some(id)) => Ok(Some(store.search_index().expect(id.as_str()).await?.into())),
        // The search reports an index that cannot be read.
        Ok(None) | Err(_) => Ok(None),
    }
}

/// Keeps `expected` up to date as long as it has receivers. While the database does not answer, the last value stays.
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
            Search::Remote { search: Box::new(remote), embeddings: embedders.server.clone() }
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
        GroundingCommand::Explain { text: Some(text), .. } => {
            let message = Message::new(Role::User, text);
            let message = message.map_err(|error| CliError::new(format!("the message {error}")))?;
            explain(settings, &[message]).await
        }
        GroundingCommand::Explain { conversation, .. } => {
            let file = conversation.unwrap_or_else(|| "-".into());
            explain(settings, &conversation_in(&file)?).await
        }
    }
}

fn score(file: &Path) -> Result<(), CliError> {
    let text = read(file)?;
    let scorer = Scorer::new();
    let mut out = BufWriter::new(std::io::stdout().lock());
    for row in scorer::parse_labelled(&text) {
        let row = row.map_err(|error| CliError::new(format!("{}, {error}", file.display())))?;
        let (score, reasons) = scorer.explain(&row.messages);
        let (required, score) = (score.is_required(), format::score(score.get()));
        let scored = json!({ "id": row.id, "required": required, "score": score, "reasons": reasons });
        writeln!(out, "{scored}")?;
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

/// The messages of a JSON document, checked as the API checks them, but without its limits on their number.
fn conversation_in(file: &Path) -> Result<Vec<Message>, CliError> {
    let wrong = |reason: &str| CliError::new(format!("{}: {reason}", file.display()));
    let body: serde_json::Value =
        serde_json::from_str(&read(file)?).map_err(|error| wrong(&format!("it is not one JSON document: {error}")))?;
    let messages = body["messages"].as_array().filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| wrong("it has no `messages`"))?.iter().map(|message| {
        let role = match message["role"].as_str() {
            Some("system") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            _ => return Err(wrong("the role of a message is system, user or assistant")),
        };
        let content = message["content"].as_str().ok_or_else(|| wrong("the content of a message is a string"))?;
        Message::new(role, content.to_owned()).map_err(|error| wrong(&format!("a message {error}")))
    });
    messages.collect()
}

async fn explain(settings: &Settings, messages: &[Message]) -> Result<(), CliError> {
    let (score, reasons) = Scorer::new().explain(messages);
    let mut out = std::io::stdout().lock();
    let verdict = if score.is_required() { "Needs facts" } else { "Needs no facts" };
    writeln!(out, "{verdict}: score {:.3} of scorer {}; facts are needed from 0.500 on", score.get(), scorer::VERSION)?;
    for reason in reasons {
        writeln!(out, "  {reason}")?;
    }
    if settings.grounding.is_none() {
        return Ok(writeln!(out, "Nothing is searched: `grounding` is off")?);
    }
    match &settings.search.url {
        Some(SearchUrl::Remote(url)) => {
            let query =
                query::derive(messages).filter(|_| score.is_required() || settings.grounding == Some(Mode::Always));
            match query {
                Some(query) => writeln!(out, "Search query for {url}: {query}")?,
                None => writeln!(out, "{url} is not queried")?,
            }
        }
        None | Some(SearchUrl::Local) => explain_index(settings, messages, score, &mut out).await?,
    }
    Ok(())
}

/// Prints the passages of the built-in index, and whether they help.
async fn explain_index(
    settings: &Settings,
    messages: &[Message],
    score: Score,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let encoder = embedder::sentence_encoder(settings)?;
    let query = if encoder.is_some() { query::derive_for_index(messages) } else { query::derive(messages) };
    let Some(query) = query else {
        return Ok(writeln!(out, "Nothing is searched: the message is only code or personal data")?);
    };
    writeln!(out, "Search query: {query}")?;
    let Some(index) = index::open(settings)? else {
        return Ok(writeln!(
            out,
            "Nothing is indexed yet. Index a folder of documents with: adriaticum index add DIR"
        )?);
    };
    let hits = index::hits(settings, &index, &query).await?;
    let (evidence, is_used) = usefulness(settings, messages, score, &hits)?;
    match evidence {
        Some(evidence) => {
            let verdict = if evidence.is_helpful() { "help" } else { "do not help" };
            writeln!(out, "The documents {verdict}: {:+.2}; they help above 0", evidence.sum())?;
            evidence.parts().iter().try_for_each(|(what, part)| writeln!(out, "  {part:+.2} {what}"))?;
        }
        None => writeln!(out, "No document was compared by its meaning, so only requests that need facts get sources")?,
    }
    match is_used && !hits.is_empty() {
        true => writeln!(out, "In the prompt:")?,
        false => return Ok(writeln!(out, "No passage goes into the prompt")?),
    }
    let in_prompt = index::in_prompt(settings, &hits);
    for hit in hits.iter().filter(|hit| in_prompt.contains(&hit.passage.url)) {
        writeln!(out, "  {:.2} {} ({})", hit.score, hit.passage.title, hit.passage.url)?;
    }
    Ok(())
}

/// Whether the hits go into a prompt, and the evidence for it where passages are compared by their meaning.
pub(crate) fn usefulness(
    settings: &Settings,
    messages: &[Message],
    score: Score,
    hits: &[Hit],
) -> Result<(Option<Evidence>, bool), CliError> {
    let turn = embedder::sentence_encoder(settings)?.map(|encoder| encoder.vector(last_turn(messages)));
    let evidence = turn.and_then(|turn| Evidence::new(score, &turn, &QuestionClassifier::new(), messages, hits));
    // With `grounding` off: as if it were the default.
    Ok((evidence, settings.grounding.unwrap_or(Mode::Auto).uses_hits(score, evidence)))
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
