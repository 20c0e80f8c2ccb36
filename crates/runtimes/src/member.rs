//! One runtime: how it is asked, and what its answers mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use breaker::Verdict;
use bytes::Bytes;
use chat::{ChatRequest, Completion, KeyId, MODEL, RequestId};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use parking_lot::{Mutex, RwLock};
use wire::engine::Status;
use wire::runtime::{ContextOverflow, Model};

use crate::balance::Ending;
use crate::connection::{Answer, Connection, ExchangeError};
use crate::counters::MemberCounters;
use crate::endpoints::Endpoint;
use crate::key::RuntimeKey;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long whoever reads figures waits for an engine's; one that is too busy to tell them is left out.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);
/// Where our own engine tells of itself: beside the API's paths, not below them.
const STATUS_PATH: &str = "/status";
/// Seconds for which a member that is full is believed to be so, whatever it says.
const FULL_FOR: std::ops::RangeInclusive<u64> = 1..=60;
/// What a completion's bytes are taken for where its tokens were not measured; only for comparing members.
const BYTES_PER_TOKEN: usize = 4;

/// What a request is known by.
#[derive(Debug, Clone, Copy)]
pub struct Attribution<'a> {
    /// The request's id.
    pub id: RequestId,
    /// Whose it is; opaque to a runtime.
    pub tag: Option<KeyId>,
    /// Headers with the trace context.
    pub trace: &'a HeaderMap,
}

pub(crate) struct Member {
    endpoint: Endpoint,
    /// What it is known by; keeps no secret.
    name: Arc<str>,
    key: RwLock<Option<RuntimeKey>>,
    completions_path: String,
    models_path: String,
    /// Its model, learned from its `/models`.
    model: RwLock<Option<Model>>,
    counters: Arc<MemberCounters>,
    /// It does not belong to the pool any more.
    left: AtomicBool,
}

/// Why a member gave no completion. For the log; the caller is told nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// No connection.
    #[error("no connection: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection broke before anything of an answer came.
    #[error("{0}")]
    NoResponse(String),
    /// The answer broke off.
    #[error("{0}")]
    IncompleteResponse(String),
    /// An error status.
    #[error("status {0}")]
    Status(StatusCode),
    /// It refuses this one request (400, 413, 422); nothing is wrong with the member.
    #[error("status {0}: the request was refused")]
    Refused(StatusCode),
    #[error("the prompt does not fit the model's context")]
    PromptTooLong(ContextOverflow),
    /// Status 200, but not a completion.
    #[error("{0}")]
    Malformed(#[from] wire::runtime::ResponseError),
    /// It has no room now, and has done nothing; ours say so.
    #[error("no room")]
    NoCapacity {
        /// Seconds after which there may be some.
        retry_after: u64,
    },
    /// It has no room now, or does not want to be asked so often.
    #[error("status {status}: saturated")]
    Saturated {
        /// 429, or 503 with `Retry-After`.
        status: StatusCode,
        /// Seconds after which it may be asked again.
        retry_after: u64,
    },
    /// The time for the whole request was over.
    #[error("no answer in time")]
    TimedOut,
}

impl MemberError {
    /// Whether another member may be asked: nothing of a completion has arrived, and there is time left.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(_)
            | Self::NoResponse(_)
            | Self::Status(_)
            | Self::NoCapacity { .. }
            | Self::Saturated { .. } => true,
            Self::IncompleteResponse(_)
            | Self::Malformed(_)
            | Self::Refused(_)
            | Self::PromptTooLong(_)
            | Self::TimedOut => false,
        }
    }

    /// Seconds after which there may be room, if the lack of it was all that was wrong.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::NoCapacity { retry_after } | Self::Saturated { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}

fn is_about_the_request(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY)
}

/// What a result says about the member.
pub(crate) fn ending(result: &Result<Completion, MemberError>) -> Ending {
    match result {
        Ok(completion) => match (completion.usage.completion, completion.text.len()) {
            (Some(tokens), _) => Ending::completed(tokens),
            // An empty completion without usage may hide a long time of thinking, so it says nothing about the pace.
            (None, 0) => Ending::heard(Verdict::Good),
            (None, bytes) => Ending::completed(u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX)),
        },
        Err(MemberError::Saturated { retry_after, .. }) => Ending::full(Verdict::Unclear, retry_after * 1000),
        Err(MemberError::NoCapacity { retry_after }) => Ending::full(Verdict::Good, retry_after * 1000),
        Err(MemberError::TimedOut) => Ending::silent(Verdict::Bad),
        Err(MemberError::Refused(_) | MemberError::PromptTooLong(_)) => Ending::heard(Verdict::Good),
        Err(
            MemberError::Connect(_)
            | MemberError::NoResponse(_)
            | MemberError::IncompleteResponse(_)
            | MemberError::Status(_)
            | MemberError::Malformed(_),
        ) => Ending::heard(Verdict::Bad),
    }
}

/// Connections to one member that nobody uses at the moment.
#[derive(Default)]
pub(crate) struct Idle(Mutex<Vec<Connection>>);

impl Idle {
    fn take(&self) -> Option<Connection> {
        self.0.lock().pop()
    }

    fn put(&self, connection: Connection) {
        if connection.is_open() {
            self.0.lock().push(connection);
        }
    }
}

impl Member {
    /// A member with the key for all that have none of their own, and the counters that it has had.
    pub(crate) fn new(endpoint: Endpoint, common_key: Option<&RuntimeKey>, counters: Arc<MemberCounters>) -> Self {
        let member = Self {
            name: endpoint.to_string().into(),
            key: RwLock::default(),
            completions_path: endpoint.url.path_of("/chat/completions"),
            models_path: endpoint.url.path_of("/models"),
            endpoint,
            model: RwLock::default(),
            counters,
            left: AtomicBool::new(false),
        };
        member.set_key(member.endpoint.url.key().or(common_key));
        member
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its name, for whoever keeps it.
    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }

    pub(crate) fn counters(&self) -> &MemberCounters {
        &self.counters
    }

    pub(crate) fn set_key(&self, key: Option<&RuntimeKey>) {
        *self.key.write() = key.cloned();
    }

    /// It gets nothing new.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Asks for a completion.
    pub(crate) async fn complete(
        &self,
        idle: &Idle,
        request: &ChatRequest,
        attribution: Attribution<'_>,
    ) -> Result<Completion, MemberError> {
        let body = {
            let model = self.model.read();
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
                headers.insert(wire::engine::TAG_HEADER, tag);
            }
            headers.extend(attribution.trace.clone());
            request
        };
        let answer = self.ask(idle, build).await?;
        match answer.status {
            StatusCode::OK => Ok(wire::runtime::parse_completion(&answer.body)?),
            status if is_about_the_request(status) => match wire::runtime::parse_context_overflow(&answer.body) {
                Some(overflow) => Err(MemberError::PromptTooLong(overflow)),
                None => Err(MemberError::Refused(status)),
            },
            status => Err(refusal(status, &answer)),
        }
    }

    /// Whether the member is there. Learns about its model on the way.
    pub(crate) async fn check(&self, idle: &Idle) -> Result<(), MemberError> {
        let build = || self.request(Method::GET, &self.models_path, Bytes::new());
        let answer = tokio::time::timeout(HEALTH_TIMEOUT, self.ask(idle, build)).await;
        let answer = answer.unwrap_or(Err(MemberError::TimedOut))?;
        // Any answer shows that somebody is there, except the three that say that nobody is behind it, or not yet.
        match answer.status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                return Err(MemberError::Status(answer.status));
            }
            StatusCode::OK => {
                if let Some(model) = wire::runtime::parse_first_model(&answer.body) {
                    *self.model.write() = Some(model);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What it tells of itself, if it is our own engine.
    pub(crate) async fn engine_status(&self) -> Option<Status> {
        if !self.is_ours() {
            return None;
        }
        let build = || self.request(Method::GET, STATUS_PATH, Bytes::new());
        let idle = Idle::default();
        let answer = tokio::time::timeout(STATUS_TIMEOUT, self.ask(&idle, build)).await.ok()?.ok()?;
        Status::parse(&answer.body).filter(|_| answer.status == StatusCode::OK)
    }

    /// Whether it is our own engine, whose health checks decode a token.
    pub(crate) fn is_ours(&self) -> bool {
        self.model.read().as_ref().is_some_and(|model| model.is_ours)
    }

    /// Its model, if it said one.
    pub(crate) fn model(&self) -> Option<Model> {
        self.model.read().clone()
    }

    /// Sends a request over an idle connection if there is one that still works, else over a new one.
    async fn ask(&self, idle: &Idle, build: impl Fn() -> Request<Full<Bytes>>) -> Result<Answer, MemberError> {
        while let Some(mut connection) = idle.take() {
            if !connection.is_usable().await {
                continue;
            }
            match connection.exchange(build()).await {
                // The member closed it just when we used it: no fault of anyone.
                Err(ExchangeError::BeforeResponse(_)) => break,
                other => return self.keep(idle, connection, other),
            }
        }
        let opened =
            tokio::time::timeout(CONNECT_TIMEOUT, Connection::open(&self.endpoint.url, self.endpoint.address)).await;
        let mut connection =
            opened.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(MemberError::Connect)?;
        let result = connection.exchange(build()).await;
        self.keep(idle, connection, result)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a runtime's path comes from a parsed URL");
        request.headers_mut().insert(header::HOST, self.endpoint.url.host_header.clone());
        if let Some(key) = &*self.key.read() {
            request.headers_mut().insert(header::AUTHORIZATION, key.header());
        }
        request
    }

    fn keep(
        &self,
        idle: &Idle,
        connection: Connection,
        result: Result<Answer, ExchangeError>,
    ) -> Result<Answer, MemberError> {
        match result {
            Ok(answer) => {
                if !self.has_left() {
                    idle.put(connection);
                }
                Ok(answer)
            }
            Err(broken @ ExchangeError::BeforeResponse(_)) => Err(MemberError::NoResponse(broken.to_string())),
            Err(broken @ ExchangeError::WithinResponse(_)) => Err(MemberError::IncompleteResponse(broken.to_string())),
        }
    }
}

/// What an error status means. A 503 is a lack of room only if it says so: others come from servers that are broken.
fn refusal(status: StatusCode, answer: &Answer) -> MemberError {
    let retry_after = answer.retry_after.unwrap_or(0).clamp(*FULL_FOR.start(), *FULL_FOR.end());
    match status {
        StatusCode::SERVICE_UNAVAILABLE if wire::runtime::is_no_capacity(&answer.body) => {
            MemberError::NoCapacity { retry_after }
        }
        StatusCode::TOO_MANY_REQUESTS => MemberError::Saturated { status, retry_after },
        StatusCode::SERVICE_UNAVAILABLE if answer.retry_after.is_some() => {
            MemberError::Saturated { status, retry_after }
        }
        _ => MemberError::Status(status),
    }
}
