//! Answers: the one for a recorded completion, and the one for every refusal.

use std::borrow::Cow;
use std::fmt::Display;

use chat::RequestId;
use http::header::{self, HeaderName};
use http::{HeaderValue, StatusCode};
use store::{Outcome, Receipt};
use transport::{MAX_HEAD_BYTES, MAX_HEADERS, Rejection, Response, UploadError};
use wire::ErrorCode;

use crate::meter::Cited;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Whether a client may send the same request again by itself; OpenAI's libraries obey it.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Seconds after which a caller that found no room may well find some.
const RETRY_AFTER: u64 = 1;

/// The answer to a completion whose row is durable. There is no other way to a 200.
pub(crate) fn completed(receipt: &Receipt, cited: &Cited) -> Response {
    let id = receipt.request_id();
    let mut answer = json(StatusCode::OK, wire::completion(&cited.completion, id), id);
    for source in &cited.sources {
        let link = HeaderValue::from_str(&source.link()).expect("a link is visible ASCII");
        answer.headers_mut().append(header::LINK, link);
    }
    answer
}

/// Why a request gets no completion: what the caller is told, and what only the log is.
#[derive(Debug)]
pub(crate) struct ApiError {
    code: ErrorCode,
    message: Cow<'static, str>,
    /// Whether the same request may do better by and by, and costs nobody anything twice.
    is_passing: bool,
    /// Seconds after which it is worth trying again.
    retry_after: Option<u64>,
    cause: Option<String>,
    hung_up: bool,
}

/// How the ledger writes down a completion.
pub(crate) const COMPLETED: Outcome = Outcome { status: 200, code: None };

/// How the ledger writes down what was cut off by ourselves.
pub(crate) const FAILED: Outcome = Outcome { status: 503, code: Some("service_unavailable") };

/// How the ledger writes down a caller that has gone; the status is nginx's.
pub(crate) const CLIENT_CLOSED: Outcome = Outcome { status: 499, code: Some("client_closed") };

impl ApiError {
    pub(crate) fn not_found(message: String) -> Self {
        Self { message: message.into(), ..Self::of(ErrorCode::NotFound) }
    }

    pub(crate) fn invalid_api_key() -> Self {
        Self::of(ErrorCode::InvalidApiKey)
    }

    pub(crate) fn insufficient_permission() -> Self {
        Self::of(ErrorCode::InsufficientPermission)
    }

    pub(crate) fn payload_too_large() -> Self {
        Self::of(ErrorCode::PayloadTooLarge)
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self { message: message.into(), ..Self::of(ErrorCode::InvalidRequest) }
    }

    pub(crate) fn inference_error(cause: impl Display, retry_after: Option<u64>) -> Self {
        Self { retry_after, ..Self::of(ErrorCode::InferenceError).because(cause) }
    }

    /// A healthy runtime does not take this very request.
    pub(crate) fn refused_by_runtime(cause: impl Display) -> Self {
        let message = "The inference service refused this request; sending it again will not help.".into();
        Self { message, ..Self::inference_error(cause, None) }.for_good()
    }

    pub(crate) fn search_unavailable(cause: impl Display) -> Self {
        Self::of(ErrorCode::SearchUnavailable).because(cause)
    }

    pub(crate) fn unavailable(message: &'static str) -> Self {
        Self { message: message.into(), ..Self::of(ErrorCode::ServiceUnavailable) }
    }

    pub(crate) fn no_room() -> Self {
        Self::no_room_for(RETRY_AFTER)
    }

    /// No room for that many seconds.
    pub(crate) fn no_room_for(seconds: u64) -> Self {
        Self {
            retry_after: Some(seconds),
            ..Self::unavailable("There is no room for this request now. Please try again later.")
        }
    }

    pub(crate) fn unconfigured() -> Self {
        Self::unavailable("No inference runtime is configured.").for_good()
    }

    /// The completion was run, and its row may yet be written: whether to run it again is for people to say.
    pub(crate) fn unrecorded(cause: impl Display) -> Self {
        Self::unavailable("The usage of this request could not be recorded.").for_good().because(cause)
    }

    pub(crate) fn starting() -> Self {
        Self {
            retry_after: Some(RETRY_AFTER),
            ..Self::unavailable("The model is being loaded. Please try again in a moment.")
        }
    }

    /// The service stops, and its time for finishing is over.
    pub(crate) fn stopping() -> Self {
        Self::unavailable("The service is stopping and could not finish this request.")
    }

    pub(crate) fn from_upload(error: UploadError) -> Self {
        match error {
            UploadError::TooLarge => Self::payload_too_large(),
            UploadError::TimedOut => Self::invalid("The body did not arrive in time."),
            UploadError::BadFraming => Self::invalid("The body is not framed as its headers say."),
            UploadError::Disconnected => Self::hung_up(),
        }
    }

    /// What never became a request.
    pub(crate) fn rejected(why: Rejection) -> Self {
        match why {
            Rejection::MalformedHead => Self::invalid("The request line or a header is not valid HTTP."),
            Rejection::HeadTooLarge => Self::invalid(format!(
                "The request's head is too large: at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers are accepted."
            )),
            Rejection::PlaintextOnTls => {
                Self::invalid("This address speaks TLS. Send the request to its https:// URL.")
            }
            Rejection::TooManyConnections => Self::no_room(),
        }
    }

    pub(crate) fn our_fault(cause: impl Display) -> Self {
        Self::unavailable("The service failed on this request. The fault is logged under its request id.")
            .for_good()
            .because(cause)
    }

    /// Adds what the log is told.
    pub(crate) fn because(self, cause: impl Display) -> Self {
        Self { cause: Some(cause.to_string()), ..self }
    }

    /// The caller has gone: nobody reads this.
    pub(crate) fn hung_up() -> Self {
        Self { hung_up: true, ..Self::invalid("The body broke off.") }
    }

    /// How the ledger writes it down.
    pub(crate) fn outcome(&self) -> Outcome {
        if self.hung_up {
            return CLIENT_CLOSED;
        }
        Outcome { status: self.code.status(), code: Some(self.code.as_str()) }
    }

    /// Tells the log the cause, if there is one, and the caller the rest.
    pub(crate) fn into_answer(self, id: RequestId) -> Response {
        if let Some(cause) = &self.cause {
            tracing::warn!(request_id = %id, code = self.code.as_str(), cause, "a request failed");
        }
        let status = StatusCode::from_u16(self.code.status()).expect("the table holds valid statuses");
        let mut answer = json(status, wire::envelope(self.code, &self.message, id), id);
        let should_retry = if self.is_passing { "true" } else { "false" };
        answer.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static(should_retry));
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == ErrorCode::InvalidApiKey {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }

    /// No client is to try this again by itself.
    fn for_good(self) -> Self {
        Self { is_passing: false, ..self }
    }

    fn of(code: ErrorCode) -> Self {
        let is_passing = code.is_transient();
        Self {
            code,
            message: code.default_message().into(),
            is_passing,
            retry_after: None,
            cause: None,
            hung_up: false,
        }
    }
}

fn json(status: StatusCode, body: Vec<u8>, id: RequestId) -> Response {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(REQUEST_ID, HeaderValue::from_str(id.to_text().as_str()).expect("a request id is ASCII"));
    answer
}
