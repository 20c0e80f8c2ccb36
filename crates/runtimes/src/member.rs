//! One runtime: how it is asked, and what its answers mean.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use breaker::Verdict;
use bytes::Bytes;
use chat::{ChatRequest, Completion, KeyId, MODEL, RequestId};
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use wire::runtime::ContextOverflow;

use wire::runtime::Model;

use crate::connection::{Answer, Broken, Connection};
use crate::url::RuntimeUrl;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// What a request is known by.
#[derive(Debug, Clone, Copy)]
pub struct Attribution {
    /// The request's id.
    pub id: RequestId,
    /// Whose it is; opaque to a runtime.
    pub tag: Option<KeyId>,
}

pub(crate) struct Member {
    pub(crate) url: RuntimeUrl,
    completions_path: String,
    models_path: String,
    /// Its model, learned from its `/models`.
    model: RwLock<Option<Model>>,
}

/// Why a member gave no completion. For the log; the caller is told nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error("no connection: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection broke before anything of an answer came.
    #[error("{0}")]
    NoAnswer(String),
    /// The answer broke off.
    #[error("{0}")]
    HalfAnswer(String),
    /// An error status.
    #[error("status {0}")]
    Status(StatusCode),
    /// Status 200, but not a completion.
    #[error("{0}")]
    Malformed(#[from] wire::runtime::Malformed),
    /// It has no room now, and has done nothing.
    #[error("no room")]
    NoRoom,
    /// The time for the whole request was over.
    #[error("no answer in time")]
    TimedOut,
    /// Every member is known to be down.
    #[error("every runtime is down")]
    NobodyLeft,
}

impl Failure {
    /// Whether another member may be asked: nothing of a completion has arrived, and it was not the time that ran out.
    pub(crate) fn may_be_retried(&self) -> bool {
        match self {
            Self::Connect(_) | Self::NoAnswer(_) | Self::NoRoom => true,
            Self::Status(status) => !is_about_the_request(*status),
            Self::HalfAnswer(_) | Self::Malformed(_) | Self::TimedOut | Self::NobodyLeft => false,
        }
    }

    /// What it says about the member.
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Self::Status(StatusCode::TOO_MANY_REQUESTS) | Self::NobodyLeft => Verdict::Unclear,
            Self::NoRoom => Verdict::Good,
            Self::Status(status) if is_about_the_request(*status) => Verdict::Good,
            _ => Verdict::Bad,
        }
    }
}

fn is_about_the_request(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY)
}

/// What a member made of a request.
pub(crate) enum Reply {
    Completion(Completion),
    TooLong(ContextOverflow),
}

/// Connections to one member that nobody uses at the moment.
#[derive(Default)]
pub(crate) struct Idle(Mutex<Vec<Connection>>);

impl Idle {
    fn take(&self) -> Option<Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put(&self, connection: Connection) {
        if connection.is_open() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}

impl Member {
    pub(crate) fn new(url: RuntimeUrl) -> Self {
        Self {
            completions_path: url.path_of("/chat/completions"),
            models_path: url.path_of("/models"),
            url,
            model: RwLock::default(),
        }
    }

    /// Asks for a completion.
    pub(crate) async fn complete(
        &self,
        idle: &Idle,
        request: &ChatRequest,
        attribution: Attribution,
    ) -> Result<Reply, Failure> {
        let body = {
            let model = self.model.read().unwrap_or_else(PoisonError::into_inner);
            Bytes::from(wire::runtime::request(request, model.as_ref().map_or(MODEL, |model| &model.name)))
        };
        let build = || {
            let mut request = self.request(Method::POST, &self.completions_path, body.clone());
            let headers = request.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            if let Ok(id) = HeaderValue::from_str(attribution.id.to_text().as_str()) {
                headers.insert("x-request-id", id);
            }
            if let Some(tag) = attribution.tag.and_then(|tag| HeaderValue::from_str(tag.as_str()).ok()) {
                headers.insert(wire::engine::TAG, tag);
            }
            request
        };
        let answer = self.ask(idle, build).await?;
        match answer.status {
            StatusCode::OK => Ok(Reply::Completion(wire::runtime::completion(&answer.body)?)),
            status if is_about_the_request(status) => match wire::runtime::context_overflow(&answer.body) {
                Some(overflow) => Ok(Reply::TooLong(overflow)),
                None => Err(Failure::Status(status)),
            },
            StatusCode::SERVICE_UNAVAILABLE if wire::runtime::is_no_room(&answer.body) => Err(Failure::NoRoom),
            status => Err(Failure::Status(status)),
        }
    }

    /// Whether the member is there. Learns about its model on the way.
    pub(crate) async fn check(&self, idle: &Idle) -> Result<(), Failure> {
        let build = || self.request(Method::GET, &self.models_path, Bytes::new());
        let answer = tokio::time::timeout(HEALTH_TIMEOUT, self.ask(idle, build)).await;
        let answer = answer.unwrap_or(Err(Failure::TimedOut))?;
        // Any answer shows that somebody is there, except the three that say that nobody is behind it, or not yet.
        match answer.status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                return Err(Failure::Status(answer.status));
            }
            StatusCode::OK => {
                if let Some(model) = wire::runtime::first_model(&answer.body) {
                    *self.model.write().unwrap_or_else(PoisonError::into_inner) = Some(model);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Its model, if it said one.
    pub(crate) fn model(&self) -> Option<Model> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request over an idle connection if there is one that still works, else over a new one.
    async fn ask(&self, idle: &Idle, build: impl Fn() -> Request<Full<Bytes>>) -> Result<Answer, Failure> {
        while let Some(mut connection) = idle.take() {
            if !connection.is_usable().await {
                continue;
            }
            match connection.exchange(build()).await {
                // The member closed it just when we used it: no fault of anyone.
                Err(Broken::BeforeAnswer(_)) => break,
                other => return keep(idle, connection, other),
            }
        }
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, Connection::open(&self.url)).await;
        let mut connection =
            opened.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(Failure::Connect)?;
        let result = connection.exchange(build()).await;
        keep(idle, connection, result)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a runtime's path comes from a parsed URL");
        request.headers_mut().insert(header::HOST, self.url.host_header.clone());
        request
    }
}

fn keep(idle: &Idle, connection: Connection, result: Result<Answer, Broken>) -> Result<Answer, Failure> {
    match result {
        Ok(answer) => {
            idle.put(connection);
            Ok(answer)
        }
        Err(broken @ Broken::BeforeAnswer(_)) => Err(Failure::NoAnswer(broken.to_string())),
        Err(broken @ Broken::WithinAnswer(_)) => Err(Failure::HalfAnswer(broken.to_string())),
    }
}
