//! The source of the vectors of passages and questions: the sentence encoder, an embeddings server, or an engine with an
//! embedding model in a separate process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use grounding::Embedders;
use grounding::index::{Embedder, EmbeddingsServer, EmbeddingsUrl, Prefixes, SentenceEncoder};
use grounding::search::{RemoteSearch, SearchError, SearchUrl};
use runtimes::EngineCommand;
use tokio::process::{Child, ChildStdin};

use crate::embedded::{SocketFile, engine_command};
use crate::error::CliError;
use crate::index;
use crate::model::fetch_encoder;
use crate::output::print_note;
use crate::settings::{Embeddings, Settings};

/// How often a service looks for a missing sentence encoder, and requests an unknown model of a server.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often a command polls an engine that is starting.
const START_INTERVAL: Duration = Duration::from_millis(50);
/// The wait before an engine that has exited is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(5);

/// The embedder of a command. Its engine, if any, runs until this is dropped.
pub(crate) struct CommandEmbedder {
    pub(crate) embedder: Embedder,
    _engine: Option<(Child, Option<ChildStdin>, SocketFile)>,
}

/// `None` if documents are found by their words alone. Without a sentence encoder, that holds only for a new index: one
/// that has vectors would lose them.
pub(crate) async fn for_indexing(settings: &Settings) -> Result<Option<CommandEmbedder>, CliError> {
    if settings.search.embeddings == Embeddings::Off {
        return Ok(None);
    }
    let encoder = match fetch_encoder(settings).await {
        Ok(file) => load_encoder(&file),
        Err(error) => Err(error),
    };
    match (&settings.search.embeddings, encoder) {
        (Embeddings::Encoder, Ok(encoder)) => Ok(Some(CommandEmbedder::sentences(encoder))),
        (Embeddings::Encoder, Err(error)) => match index::open(settings)? {
            Some(index) if index.has_vectors().map_err(index::cli_error)? => Err(error),
            _ => {
                print_note(&format!("documents will be found by their words alone: {error}"));
                Ok(None)
            }
        },
        (_, encoder) => {
            if let Err(error) = encoder {
                print_note(&format!("documents will be searched only for requests that need facts: {error}"));
            }
            served(settings).await.map(Some)
        }
    }
}

/// `None` if documents are found by their words alone.
pub(crate) async fn for_searching(settings: &Settings) -> Result<Option<CommandEmbedder>, CliError> {
    match &settings.search.embeddings {
        Embeddings::Off => Ok(None),
        Embeddings::Encoder => Ok(sentence_encoder(settings)?.map(CommandEmbedder::sentences)),
        Embeddings::Server(_) | Embeddings::Model(_) => served(settings).await.map(Some),
    }
}

/// `None` if it was not downloaded, or is turned off.
pub(crate) fn sentence_encoder(settings: &Settings) -> Result<Option<Arc<SentenceEncoder>>, CliError> {
    let file = settings.encoder_file();
    if settings.search.embeddings == Embeddings::Off || !file.exists() {
        return Ok(None);
    }
    load_encoder(&file).map(Some)
}

fn load_encoder(file: &Path) -> Result<Arc<SentenceEncoder>, CliError> {
    SentenceEncoder::load(file).map(Arc::new).map_err(|error| {
        let file = file.display();
        CliError::new(format!("{file} cannot be loaded: {error}. Remove it, and run `adriaticum index add` again."))
    })
}

impl CommandEmbedder {
    fn sentences(encoder: Arc<SentenceEncoder>) -> Self {
        Self { embedder: Embedder::Sentences(encoder), _engine: None }
    }
}

/// An embedder with a server that answers.
async fn served(settings: &Settings) -> Result<CommandEmbedder, CliError> {
    let (server, engine) = match &settings.search.embeddings {
        Embeddings::Model(model) => {
            let socket = SocketFile::new(&settings.data_dir);
            let server = new_server(settings, EmbeddingsUrl::socket(socket.path()))?;
            let (mut engine, stdin) = embedding_engine(settings, model, &socket)
                .spawn()
                .map_err(|error| CliError::new(format!("the embedding model could not be started: {error}")))?;
            wait_for(&server, &mut engine, model).await?;
            (server, Some((engine, stdin, socket)))
        }
        Embeddings::Server(url) => {
            let server = new_server(settings, url.clone())?;
            let model = server.model().await;
            model.map_err(|error| CliError::new(format!("the embeddings server {url} cannot be used: {error}.")))?;
            (server, None)
        }
        Embeddings::Off | Embeddings::Encoder => return Err(CliError::new("no embeddings server is set")),
    };
    Ok(CommandEmbedder { embedder: Embedder::Server(Arc::new(server)), _engine: engine })
}

fn new_server(settings: &Settings, url: EmbeddingsUrl) -> Result<EmbeddingsServer, CliError> {
    let search = &settings.search;
    let prefixes = Prefixes { question: search.question_prefix.clone(), passage: search.passage_prefix.clone() };
    // Half of the time is left for the search by words.
    let server = EmbeddingsServer::new(url, search.embeddings_model.clone(), prefixes, search.timeout / 2);
    server.map_err(|error| CliError::new(format!("the embeddings server cannot be used: {error}.")))
}

fn embedding_engine(settings: &Settings, model: &Path, socket: &SocketFile) -> EngineCommand {
    let mut command = engine_command(settings, model, socket);
    command.arguments.push("--embeddings".into());
    command
}

async fn wait_for(server: &EmbeddingsServer, engine: &mut Child, model: &Path) -> Result<(), CliError> {
    let cannot =
        |reason: String| CliError::new(format!("{} cannot be used for embeddings: {reason}.", model.display()));
    loop {
        let error = match server.model().await {
            Ok(_) => return Ok(()),
            Err(error @ SearchError::Unreachable(_)) => error,
            Err(error) => return Err(cannot(error.to_string())),
        };
        tracing::debug!(%error, "the engine starts");
        tokio::select! {
            exit = engine.wait() => {
                return Err(cannot(exit.map_or_else(|error| error.to_string(), |status| format!("the engine has ended ({status})"))));
            }
            () = tokio::time::sleep(START_INTERVAL) => {}
        }
    }
}

/// Describes how documents are found; fails if that is less than the settings require.
pub(crate) async fn check(settings: &Settings) -> Result<String, CliError> {
    let embedder = for_searching(settings).await?;
    let has_vectors = index::open(settings)?.is_some_and(|index| index.has_vectors().unwrap_or(false));
    match embedder.map(|own| own.embedder) {
        Some(Embedder::Server(server)) => {
            let model = server.model().await.map_err(|error| CliError::new(format!("{error}.")))?;
            Ok(format!("words and meaning (vectors of {} numbers by {})", model.dimensions, model.name))
        }
        Some(Embedder::Sentences(_)) if has_vectors => Ok("words and meaning".into()),
        None if has_vectors && settings.search.embeddings == Embeddings::Encoder => Err(CliError::new(
            "the sentence encoder is not in the data folder: run `adriaticum index add DIR` again, with an indexed folder.",
        )),
        _ => Ok("words".into()),
    }
}

/// How the documents of an index on a search server are found; `None` if embeddings are not configured for it.
pub(crate) async fn check_remote(settings: &Settings, search: &RemoteSearch) -> Result<Option<String>, CliError> {
    let has_server = matches!(settings.search.embeddings, Embeddings::Server(_) | Embeddings::Model(_));
    if !has_server || !search.url().can_have_vectors() {
        return Ok(None);
    }
    let own = served(settings).await?;
    let Embedder::Server(server) = &own.embedder else { return Ok(None) };
    let model = server.model().await.map_err(|error| CliError::new(format!("{error}.")))?;
    let (name, dimensions) = (&model.name, model.dimensions);
    let fields = search.vector_fields().await;
    match (fields.iter().find(|field| field.dimensions == dimensions), fields.first()) {
        (Some(field), _) => {
            Ok(Some(format!("words and meaning (vectors of {dimensions} numbers by {name}, field {})", field.name)))
        }
        (None, Some(field)) => Err(CliError::new(format!(
            "the vectors in the field {} have {} numbers, those of {name} {dimensions}: set `search.embeddings` to the \
             model that made the index's vectors, or to off.",
            field.name, field.dimensions
        ))),
        (None, None) => Err(CliError::new(
            "no field of the index has the type knn_vector or dense_vector, or this user may not read its mapping: set \
             `search.embeddings` to off.",
        )),
    }
}

/// The embedders of a service. It loads a sentence encoder that is downloaded later, and uses a server whenever that
/// answers.
pub(crate) async fn of_service(settings: &Settings) -> Result<Embedders, CliError> {
    let mut embedders = Embedders::default();
    if settings.grounding.is_none() || settings.search.embeddings == Embeddings::Off {
        return Ok(embedders);
    }
    match &settings.search.url {
        None | Some(SearchUrl::Local) => {
            let file = settings.encoder_file();
            if !load_into(&embedders, &file).await {
                tokio::spawn(load_later(embedders.clone(), file));
            }
        }
        Some(SearchUrl::Remote(url)) if url.can_have_vectors() => {}
        Some(SearchUrl::Remote(_)) => return Ok(embedders),
    }
    let url = match &settings.search.embeddings {
        Embeddings::Server(url) => url.clone(),
        Embeddings::Model(model) => {
            let socket = SocketFile::new(&settings.data_dir);
            let url = EmbeddingsUrl::socket(socket.path());
            tokio::spawn(keep_running(embedding_engine(settings, model, &socket), socket));
            url
        }
        Embeddings::Off | Embeddings::Encoder => return Ok(embedders),
    };
    let server = Arc::new(new_server(settings, url)?);
    tokio::spawn(follow(server.clone()));
    embedders.server = Some(server);
    Ok(embedders)
}

/// Loads the sentence encoder; false if it is not there, or damaged.
async fn load_into(embedders: &Embedders, file: &Path) -> bool {
    if !file.exists() {
        return false;
    }
    let owned = file.to_owned();
    match tokio::task::spawn_blocking(move || SentenceEncoder::load(&owned)).await {
        Ok(Ok(encoder)) => {
            drop(embedders.sentences.set(Arc::new(encoder)));
            return true;
        }
        Ok(Err(error)) => {
            let file = file.display();
            tracing::error!(%error, "documents are found by their words alone: {file} cannot be loaded; remove it, and run `adriaticum index add` again");
        }
        Err(_panicked) => {} // logged by the panic hook
    }
    false
}

/// Tries each new version of the file once.
async fn load_later(embedders: Embedders, file: PathBuf) {
    let modified = || std::fs::metadata(&file).and_then(|metadata| metadata.modified()).ok();
    let mut tried = modified();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let now = modified();
        if now.is_some() && now != tried && load_into(&embedders, &file).await {
            return;
        }
        tried = now;
    }
}

/// Requests the server's model while it is unknown, and logs when that changes.
async fn follow(server: Arc<EmbeddingsServer>) {
    let (url, mut was_there) = (server.url().to_string(), None);
    loop {
        let model = server.model().await;
        match &model {
            Ok(model) if was_there != Some(true) => {
                let (model, dimensions) = (&model.name, model.dimensions);
                tracing::info!(server = %url, %model, dimensions, "embeddings are served");
            }
            Err(error) if was_there != Some(false) => {
                tracing::warn!(server = %url, %error, "documents are found by their words alone until there are embeddings");
            }
            _ => {}
        }
        was_there = Some(model.is_ok());
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Restarts the engine until this future is dropped, which removes the socket's file.
async fn keep_running(engine: EngineCommand, _socket: SocketFile) {
    loop {
        let run = async {
            let (mut engine, _stdin) = engine.spawn()?;
            engine.wait().await
        };
        match run.await {
            Ok(status) => tracing::error!(%status, "the engine of the embedding model has exited and is restarted"),
            Err(error) => tracing::error!(%error, "the engine of the embedding model could not be started"),
        }
        tokio::time::sleep(RESTART_DELAY).await;
    }
}
