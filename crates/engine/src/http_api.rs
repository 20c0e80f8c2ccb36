//! The engine's HTTP API: OpenAI-shaped, over a Unix socket or a TCP port.
//!
//! `POST /v1/chat/completions`; `GET /v1/models` and `GET /health`, which respond only if the model decodes; `GET
//! /status`. One thread serves all connections, so nothing here takes long: prompts are made by the tokenizer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use crate::embeddings::EmbeddingsApi;
use crate::gpu::Placement;
use crate::queue::Tag;
use crate::template::ChatTemplate;
use crate::tokenizer::{Job, Tokenizer};
use crate::worker::{Inbox, Message, RefusalError, SharedStatus};

/// The largest request that the service accepts, with every character escaped.
pub(crate) const MAX_BODY_BYTES: usize = 2 << 20;
const DECODE_CHECK_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Shared by all connections.
pub(crate) struct HttpApi {
    pub(crate) name: String,
    pub(crate) template: Arc<ChatTemplate>,
    pub(crate) tokenizer: Tokenizer,
    /// For decode checks.
    pub(crate) inbox: Inbox,
    pub(crate) status: SharedStatus,
    /// Tokens that a prompt and its completion may have together.
    pub(crate) context: usize,
    pub(crate) placement: Option<Placement>,
    pub(crate) queue_timeout: Duration,
    /// Counts completions, for their ids.
    pub(crate) completed: AtomicU64,
}

pub(crate) type HttpResponse = Response<Full<Bytes>>;

/// By kind of model.
pub(crate) enum Api {
    Chat(HttpApi),
    Embeddings(EmbeddingsApi),
}

/// Serves one connection to its end. If the client disconnects, its request is cancelled.
pub(crate) async fn serve(api: Arc<Api>, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service = service_fn(|request| {
        let api = api.clone();
        async move { Ok::<_, Infallible>(handle(&api, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection was closed early");
    }
}

/// Copies the request's id to the response, so that the service can match them.
async fn handle(api: &Api, request: Request<Incoming>) -> HttpResponse {
    let id = request.headers().get(wire::engine::REQUEST_ID_HEADER).cloned();
    let mut response = match api {
        Api::Chat(api) => api.respond(request).await,
        Api::Embeddings(api) => api.respond(request).await,
    };
    if let Some(id) = id {
        response.headers_mut().insert(wire::engine::REQUEST_ID_HEADER, id);
    }
    response
}

impl HttpApi {
    async fn respond(&self, request: Request<Incoming>) -> HttpResponse {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/v1/chat/completions") => self.complete(request).await,
            (&Method::GET, "/v1/models") => {
                self.respond_if_decoding(wire::engine::models(
                    &self.name,
                    self.context,
                    self.placement.as_ref().map(ToString::to_string).as_deref(),
                ))
                .await
            }
            (&Method::GET, "/health") => self.respond_if_decoding(br#"{"status":"ok"}"#.to_vec()).await,
            (&Method::GET, "/status") => json(StatusCode::OK, self.status.lock().to_json()),
            _ => json(StatusCode::NOT_FOUND, wire::engine::invalid_request("There is nothing here.")),
        }
    }

    async fn complete(&self, request: Request<Incoming>) -> HttpResponse {
        let (head, body) = request.into_parts();
        let body = match Limited::new(body, MAX_BODY_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => return bad_request("The body is incomplete or too large."),
        };
        let request = match wire::engine::parse_request(&body) {
            Ok(request) => request,
            Err(invalid) => return bad_request(&invalid.to_string()),
        };
        // Rejected by its size alone, before any work.
        let least = self.template.least_tokens(&request);
        if least >= self.context {
            return json(StatusCode::BAD_REQUEST, wire::engine::context_overflow(least, false, self.context));
        }
        let (respond_to, response) = oneshot::channel();
        self.tokenizer.push(Job {
            request,
            tag: tag(&head.headers),
            deadline: Instant::now() + self.queue_timeout,
            respond_to,
        });
        match response.await {
            Ok(Ok(generated)) => {
                let id = format!("engine-{}", self.completed.fetch_add(1, Ordering::Relaxed));
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                let body =
                    wire::engine::completion(&generated.completion, &id, now, &self.name, generated.cached_tokens);
                json(StatusCode::OK, body)
            }
            Ok(Err(RefusalError::TooLong { tokens, is_exact })) => {
                json(StatusCode::BAD_REQUEST, wire::engine::context_overflow(tokens, is_exact, self.context))
            }
            Ok(Err(RefusalError::Template(error))) => bad_request(&error.to_string()),
            Ok(Err(RefusalError::NoCapacity)) => {
                let mut response = json(StatusCode::SERVICE_UNAVAILABLE, wire::engine::no_capacity());
                response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
                response
            }
            Ok(Err(RefusalError::Overflow)) => server_error("The model has computed numbers that are not finite."),
            Err(_) => server_error("The model has stopped."),
        }
    }

    /// Responds with 200 only after the model has decoded a token.
    async fn respond_if_decoding(&self, body: Vec<u8>) -> HttpResponse {
        let (decoded, has_decoded) = oneshot::channel();
        let sent = self.inbox.send(Message::CheckDecode(decoded)).is_ok();
        if sent && matches!(tokio::time::timeout(DECODE_CHECK_TIMEOUT, has_decoded).await, Ok(Ok(()))) {
            return json(StatusCode::OK, body);
        }
        json(StatusCode::SERVICE_UNAVAILABLE, wire::engine::server_error("The model does not decode."))
    }
}

fn tag(headers: &HeaderMap) -> Tag {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    Tag::new(text(wire::engine::PERSON_HEADER), text(wire::engine::KEY_HEADER).unwrap_or_default())
}

pub(crate) fn bad_request(message: &str) -> HttpResponse {
    json(StatusCode::BAD_REQUEST, wire::engine::invalid_request(message))
}

pub(crate) fn server_error(message: &str) -> HttpResponse {
    json(StatusCode::INTERNAL_SERVER_ERROR, wire::engine::server_error(message))
}

pub(crate) fn json(status: StatusCode, body: Vec<u8>) -> HttpResponse {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
