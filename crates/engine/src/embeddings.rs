//! The engine with an embedding model: `POST /v1/embeddings`, `GET /v1/models` and `GET /health`. Texts are embedded one
//! after another on the thread that owns the model.

use std::path::Path;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::http_api::{Api, HttpResponse, MAX_BODY_BYTES, bad_request, json, server_error};
use crate::model::embedding::EmbeddingModel;
use crate::{EngineError, Frontend};

/// Per request.
const MAX_TEXTS: usize = 256;

/// A model that turns texts into vectors.
pub struct EmbeddingEngine {
    model: EmbeddingModel,
    jobs: mpsc::Receiver<Job>,
}

/// The texts of a request, and the channel for their vectors.
struct Job {
    texts: Vec<String>,
    respond_to: oneshot::Sender<Result<Vec<Vec<f32>>, String>>,
}

impl EmbeddingEngine {
    pub fn load(path: &Path) -> Result<(Self, Frontend), EngineError> {
        let model = EmbeddingModel::load(path)?;
        model.embedder()?; // rejects a model that makes no vectors before anything is served
        let (sender, jobs) = mpsc::channel();
        let api = EmbeddingsApi { name: model.name(), jobs: sender };
        Ok((Self { model, jobs }, Frontend(Arc::new(Api::Embeddings(api)))))
    }

    pub fn name(&self) -> String {
        self.model.name()
    }

    /// Runs until the frontend is dropped, on the thread that loaded the model.
    pub fn run(self) -> Result<(), EngineError> {
        let mut embedder = self.model.embedder()?;
        while let Ok(Job { texts, respond_to }) = self.jobs.recv() {
            let mut vectors = Ok(Vec::with_capacity(texts.len()));
            for text in texts {
                if respond_to.is_closed() {
                    break;
                }
                vectors = vectors.and_then(|mut vectors| {
                    vectors.push(embedder.embed(&text).map_err(|error| error.to_string())?);
                    Ok(vectors)
                });
            }
            let _ = respond_to.send(vectors); // the client may be gone
        }
        Ok(())
    }
}

pub(crate) struct EmbeddingsApi {
    name: String,
    jobs: mpsc::Sender<Job>,
}

#[derive(Deserialize)]
struct Input {
    input: OneOrMore,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Serialize)]
struct Output<'a> {
    object: &'static str,
    model: &'a str,
    data: Vec<Embedding>,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vec<f32>,
}

impl EmbeddingsApi {
    pub(crate) async fn respond(&self, request: Request<Incoming>) -> HttpResponse {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/v1/embeddings") => self.embed(request).await,
            (&Method::GET, "/v1/models") => json(StatusCode::OK, wire::engine::models(&self.name, 0, None)),
            (&Method::GET, "/health") => json(StatusCode::OK, br#"{"status":"ok"}"#.to_vec()),
            _ => json(StatusCode::NOT_FOUND, wire::engine::invalid_request("There is nothing here.")),
        }
    }

    async fn embed(&self, request: Request<Incoming>) -> HttpResponse {
        let body = match Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => return bad_request("The body is incomplete or too large."),
        };
        let Some(texts) = texts(&body) else {
            return bad_request("`input` must be a text, or up to 256 texts, none of them empty.");
        };
        let (respond_to, response) = oneshot::channel();
        let sent = self.jobs.send(Job { texts, respond_to }).is_ok();
        let vectors = match response.await {
            Ok(Ok(vectors)) if sent => vectors,
            Ok(Err(reason)) => return server_error(&format!("The text could not be embedded: {reason}.")),
            _ => return server_error("The model has stopped."),
        };
        let embedding = |(index, embedding)| Embedding { object: "embedding", index, embedding };
        let data = vectors.into_iter().enumerate().map(embedding).collect();
        match serde_json::to_vec(&Output { object: "list", model: &self.name, data }) {
            Ok(body) => json(StatusCode::OK, body),
            Err(error) => server_error(&error.to_string()),
        }
    }
}

fn texts(body: &Bytes) -> Option<Vec<String>> {
    let texts = match serde_json::from_slice(body).ok()? {
        Input { input: OneOrMore::One(text) } => vec![text],
        Input { input: OneOrMore::More(texts) } => texts,
    };
    let is_right = (1..=MAX_TEXTS).contains(&texts.len()) && texts.iter().all(|text| !text.is_empty());
    is_right.then_some(texts)
}
