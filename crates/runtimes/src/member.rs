//! One runtime: sends requests to it and interprets its responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use breaker::Verdict;
use bytes::Bytes;
use chat::{ChatRequest, Completion, KeyId, MODEL, RequestId};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use parking_lot::RwLock;
use wire::engine::Status;
use wire::runtime::{ContextOverflow, Model};

use crate::balance::{MoveReason, Observation};
use crate::connection::{Connection, ExchangeError, IdleState, RuntimeRequest, RuntimeResponse};
use crate::counters::{Event, MemberCounters};
use crate::endpoints::Endpoint;
use crate::idle::{Connections, IdleConnections};
use crate::key::RuntimeKey;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Short, because metrics wait for it. An engine that is too busy is omitted.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);
const MOVE_LOG_INTERVAL_MS: u64 = 10_000;
/// The embedded engine's status. Not below the base URL's path.
const STATUS_PATH: &str = "/status";
const REQUEST_ID: HeaderName = HeaderName::from_static(wire::engine::REQUEST_ID_HEADER);
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const KEY: HeaderName = HeaderName::from_static(wire::engine::KEY_HEADER);
const PERSON: HeaderName = HeaderName::from_static(wire::engine::PERSON_HEADER);
/// A member's `Retry-After` is clamped to this range.
const RETRY_AFTER_SECONDS: std::ops::RangeInclusive<u64> = 1..=60;
/// An estimate for completions without usage, used only to compare members.
const BYTES_PER_TOKEN: usize = 4;

/// The headers of a request to a runtime.
#[derive(Debug, Clone, Copy)]
pub struct Attribution<'a> {
    pub id: RequestId,
    /// The caller's key and its owner, for the engine's fair queue.
    pub key: Option<KeyId>,
    pub person: Option<&'a str>,
    /// Headers with the trace context.
    pub trace: &'a HeaderMap,
}

pub(crate) struct Member {
    endpoint: Endpoint,
    /// The endpoint as text, without a key.
    name: Arc<str>,
    key: RwLock<Option<RuntimeKey>>,
    completions_path: Uri,
    models_path: Uri,
    /// Learned from `/models`.
    model: RwLock<Option<Model>>,
    counters: Arc<MemberCounters>,
    /// Set when it has left the pool.
    left: AtomicBool,
    /// When a move of requests was last logged, in the pool's milliseconds; 0 for never.
    move_logged_at: AtomicU64,
}

/// Why a member produced no completion. Only for the log, never for callers.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error("no connection: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection was closed before the head of a response had arrived.
    #[error("{cause}")]
    NoResponse {
        cause: String,
        /// The same had happened before over a reused connection. Then the request is not sent to another member.
        is_second: bool,
    },
    /// The connection was closed within the response, or the response is for another request.
    #[error("{0}")]
    IncompleteResponse(String),
    #[error("status {0}")]
    Status(StatusCode),
    /// It rejected the request itself (400, 413, 422); the member is healthy.
    #[error("status {0}: the request was rejected")]
    Refused(StatusCode),
    #[error("the prompt does not fit the model's context")]
    PromptTooLong(ContextOverflow),
    /// Status 200, but no completion.
    #[error("{0}")]
    Malformed(#[from] wire::runtime::ResponseError),
    /// The embedded engine has no capacity now and has computed nothing.
    #[error("no capacity")]
    NoCapacity {
        /// In seconds.
        retry_after: u64,
    },
    /// It has no capacity now, or has applied a rate limit.
    #[error("status {status}: saturated")]
    Saturated {
        /// 429, or 503 with `Retry-After`.
        status: StatusCode,
        /// In seconds.
        retry_after: u64,
    },
    /// The deadline of the whole request has passed.
    #[error("no response in time")]
    TimedOut,
}

impl MemberError {
    /// Whether another member may get the request: no part of a completion has arrived, and there is time left.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(_)
            | Self::NoResponse { is_second: false, .. }
            | Self::Status(_)
            | Self::Refused(_)
            | Self::NoCapacity { .. }
            | Self::Saturated { .. } => true,
            Self::NoResponse { is_second: true, .. }
            | Self::IncompleteResponse(_)
            | Self::Malformed(_)
            | Self::PromptTooLong(_)
            | Self::TimedOut => false,
        }
    }

    /// Whether only another member's response can show if the member or the request is at fault.
    pub(crate) fn is_ambiguous(&self) -> bool {
        matches!(self, Self::NoResponse { .. } | Self::Status(_) | Self::Refused(_))
    }

    /// In seconds. Set if the member only lacks capacity.
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

/// What a result shows about the member.
pub(crate) fn observation(result: &Result<Completion, MemberError>) -> Observation {
    match result {
        Ok(completion) => match (completion.usage.completion, completion.text.len()) {
            (Some(tokens), _) => Observation::completed(tokens),
            // An empty completion without usage may follow long reasoning, so it says nothing about the pace.
            (None, 0) => Observation::responded(Verdict::Good),
            (None, bytes) => Observation::completed(u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX)),
        },
        Err(MemberError::Saturated { retry_after, .. }) => Observation::saturated(Verdict::Unclear, retry_after * 1000),
        Err(MemberError::NoCapacity { retry_after }) => Observation::saturated(Verdict::Good, retry_after * 1000),
        Err(MemberError::TimedOut) => Observation::no_response(Verdict::Bad),
        Err(MemberError::Refused(_) | MemberError::PromptTooLong(_)) => Observation::responded(Verdict::Good),
        Err(
            MemberError::Connect(_)
            | MemberError::NoResponse { .. }
            | MemberError::IncompleteResponse(_)
            | MemberError::Status(_)
            | MemberError::Malformed(_),
        ) => Observation::responded(Verdict::Bad),
    }
}

impl Member {
    /// The common key is used if the URL has none.
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
            move_logged_at: AtomicU64::new(0),
        };
        member.set_key(member.endpoint.url.key().or(common_key));
        member
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }

    pub(crate) fn counters(&self) -> &MemberCounters {
        &self.counters
    }

    pub(crate) fn set_key(&self, key: Option<&RuntimeKey>) {
        *self.key.write() = key.cloned();
    }

    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Logs at most once per interval that requests are moved away from this member.
    pub(crate) fn log_move(&self, reason: MoveReason, waited_ms: u64, now: u64) {
        let logged_at = self.move_logged_at.load(Ordering::Relaxed);
        if logged_at > 0 && now < logged_at + MOVE_LOG_INTERVAL_MS {
            return;
        }
        if self.move_logged_at.swap(now.max(1), Ordering::Relaxed) == logged_at {
            let (runtime, cause) = (self.name(), reason.as_str());
            tracing::warn!(runtime, cause, waited_ms, "requests that wait for a runtime are moved to others");
        }
    }

    /// `begun` is set once the head of a response has arrived.
    pub(crate) async fn complete(
        &self,
        connections: Connections<'_>,
        request: &ChatRequest,
        attribution: Attribution<'_>,
        begun: &AtomicBool,
    ) -> Result<Completion, MemberError> {
        let response = self.send(connections, || self.completion_request(request, attribution), begun).await?;
        match response.status {
            StatusCode::OK => Ok(wire::runtime::parse_completion(&response.body)?),
            status if is_about_the_request(status) => match wire::runtime::parse_context_overflow(&response.body) {
                Some(overflow) => Err(MemberError::PromptTooLong(overflow)),
                None => Err(MemberError::Refused(status)),
            },
            status => Err(error_for(status, &response)),
        }
    }

    fn completion_request(&self, request: &ChatRequest, attribution: Attribution<'_>) -> RuntimeRequest {
        let body = {
            let model = self.model.read();
            wire::runtime::request(request, model.as_ref().map_or(MODEL, |model| &model.name))
        };
        let id = Bytes::from(attribution.id.to_string());
        let mut request = self.request(Method::POST, &self.completions_path, body.into());
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, JSON);
        // Values that are invalid in a header are omitted.
        let person = attribution.person.map(|person| Bytes::copy_from_slice(person.as_bytes()));
        let key = attribution.key.map(|key| Bytes::copy_from_slice(key.as_str().as_bytes()));
        for (name, value) in [(REQUEST_ID, Some(id.clone())), (KEY, key), (PERSON, person)] {
            headers
                .extend(value.and_then(|value| HeaderValue::from_maybe_shared(value).ok()).map(|value| (name, value)));
        }
        headers.extend(attribution.trace.clone());
        RuntimeRequest { request, id }
    }

    /// Checks the member's health, and learns its model. The embedded engine passes if it decodes, even slowly.
    pub(crate) async fn check(&self, idle: &IdleConnections) -> Result<(), MemberError> {
        if !self.is_engine() {
            return self.check_models(idle).await;
        }
        let (before, result) = tokio::join!(self.engine_status(), self.check_models(idle));
        if let (Err(MemberError::TimedOut), Some(before)) = (&result, before)
            && self.engine_status().await.is_some_and(|after| after.steps > before.steps)
        {
            return Ok(());
        }
        result
    }

    async fn check_models(&self, idle: &IdleConnections) -> Result<(), MemberError> {
        let (request, begun) = (|| self.get(&self.models_path), AtomicBool::default());
        let response = self.send(Connections::Any(idle), request, &begun);
        let response = tokio::time::timeout(HEALTH_TIMEOUT, response).await;
        let response = response.unwrap_or(Err(MemberError::TimedOut))?;
        // Any response but these three, even an error, shows that the member is up. These come from a proxy or a starting
        // server.
        match response.status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                return Err(MemberError::Status(response.status));
            }
            StatusCode::OK => {
                if let Some(model) = wire::runtime::parse_first_model(&response.body) {
                    *self.model.write() = Some(model);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// `None` if it is not our engine, or did not respond.
    pub(crate) async fn engine_status(&self) -> Option<Status> {
        if !self.is_engine() {
            return None;
        }
        let request = || self.get(&Uri::from_static(STATUS_PATH));
        let (idle, begun) = (IdleConnections::default(), AtomicBool::default());
        let response = self.send(Connections::New(&idle), request, &begun);
        let response = tokio::time::timeout(STATUS_TIMEOUT, response).await.ok()?.ok()?;
        Status::parse(&response.body).filter(|_| response.status == StatusCode::OK)
    }

    /// Whether it is our engine, whose health checks decode a token.
    pub(crate) fn is_engine(&self) -> bool {
        self.model.read().as_ref().is_some_and(|model| model.is_ours)
    }

    pub(crate) fn model(&self) -> Option<Model> {
        self.model.read().clone()
    }

    /// Sends a request over an idle connection, or over a new one if there is none. A response over an idle one counts only
    /// if it is a 200 or carries the request's id. Any other response may belong to the previous request, so this one is
    /// sent again over a new connection.
    async fn send(
        &self,
        connections: Connections<'_>,
        request: impl Fn() -> RuntimeRequest,
        begun: &AtomicBool,
    ) -> Result<RuntimeResponse, MemberError> {
        let (idle, mut is_second) = match connections {
            Connections::Any(idle) => (idle, false),
            Connections::New(idle) => (idle, true),
        };
        if !is_second && let Some(connection) = self.take_idle(idle).await {
            match self.exchange(idle, connection, request(), begun).await {
                Ok(response) if response.status == StatusCode::OK || response.has_id => return Ok(response),
                Ok(_) => {}
                Err(_) => is_second = true,
            }
            begun.store(false, Ordering::Relaxed);
        }
        // Boxed, because it is large and seldom needed, and would enlarge every request's future.
        let open = Box::pin(Connection::open(&self.endpoint.url, self.endpoint.address));
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, open).await;
        let connection =
            opened.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(MemberError::Connect)?;
        self.exchange(idle, connection, request(), begun).await.map_err(|error| match error {
            ExchangeError::BeforeResponse(_) => MemberError::NoResponse { cause: error.to_string(), is_second },
            ExchangeError::WithinResponse(_) | ExchangeError::Foreign => {
                MemberError::IncompleteResponse(error.to_string())
            }
        })
    }

    /// An idle connection on which nothing has happened.
    async fn take_idle(&self, idle: &IdleConnections) -> Option<Connection> {
        loop {
            let mut connection = idle.take(self.counters.get(Event::Unexpected))?;
            match connection.idle_state().await {
                IdleState::Quiet => return Some(connection),
                IdleState::Closed => {}
                IdleState::Spoke => self.record_unexpected("data arrived without a request"),
            }
        }
    }

    /// Keeps the connection afterwards if another request may follow.
    async fn exchange(
        &self,
        idle: &IdleConnections,
        mut connection: Connection,
        request: RuntimeRequest,
        begun: &AtomicBool,
    ) -> Result<RuntimeResponse, ExchangeError> {
        let unexpected = self.counters.get(Event::Unexpected);
        let result = connection.exchange(request, begun).await;
        match &result {
            Ok(response) if response.has_surplus => self.record_unexpected("more data than a response has arrived"),
            Err(ExchangeError::Foreign) => self.record_unexpected("a response for another request has arrived"),
            Ok(_) if !self.has_left() && unexpected == self.counters.get(Event::Unexpected) => {
                idle.put(connection, unexpected)
            }
            _ => {}
        }
        result
    }

    /// From now on connections are not reused, except those whose responses carry ids.
    fn record_unexpected(&self, cause: &str) {
        self.counters.count(Event::Unexpected);
        tracing::warn!(runtime = self.name(), cause, "a runtime's idle connections are closed");
    }

    fn get(&self, path: &Uri) -> RuntimeRequest {
        RuntimeRequest { request: self.request(Method::GET, path, Bytes::new()), id: Bytes::new() }
    }

    fn request(&self, method: Method, path: &Uri, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.clone();
        request.headers_mut().insert(header::HOST, self.endpoint.url.host_header.clone());
        if let Some(key) = &*self.key.read() {
            request.headers_mut().insert(header::AUTHORIZATION, key.header().clone());
        }
        request
    }
}

/// A 503 means a lack of capacity only if its body or a `Retry-After` shows it. Other 503s come from broken servers.
fn error_for(status: StatusCode, response: &RuntimeResponse) -> MemberError {
    // A date counts as 0; no runtime sends one.
    let given =
        response.headers.get(header::RETRY_AFTER).map(|value| value.to_str().ok().and_then(|text| text.parse().ok()));
    let retry_after = given.flatten().unwrap_or(0).clamp(*RETRY_AFTER_SECONDS.start(), *RETRY_AFTER_SECONDS.end());
    match status {
        StatusCode::SERVICE_UNAVAILABLE if wire::runtime::is_no_capacity(&response.body) => {
            MemberError::NoCapacity { retry_after }
        }
        StatusCode::TOO_MANY_REQUESTS => MemberError::Saturated { status, retry_after },
        StatusCode::SERVICE_UNAVAILABLE if given.is_some() => MemberError::Saturated { status, retry_after },
        _ => MemberError::Status(status),
    }
}
