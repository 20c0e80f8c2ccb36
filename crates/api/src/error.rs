//! The errors of requests: the response to the caller, and the cause, which is only logged.

use std::borrow::Cow;
use std::fmt::Display;

use chat::RequestId;
use http::header::{self, HeaderName};
use http::{HeaderValue, StatusCode};
use runtimes::Availability;
use store::{BudgetRefusal, LimitReached, Outcome};
use transport::{MAX_HEAD_BYTES, MAX_HEADERS, Rejection, Response, UploadError};
use wire::ErrorCode;

use crate::response::json;

/// Whether a client may retry automatically; OpenAI's libraries obey it.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// `Retry-After` when there is no free slot, no memory for a body, or the model is still being loaded.
const RETRY_AFTER_SECONDS: u64 = 1;

/// How a completion is recorded.
pub(crate) const COMPLETED: Outcome = Outcome { status: 200, code: None };

/// How a request is recorded that the service aborted.
pub(crate) const ABORTED: Outcome = Outcome { status: 503, code: Some("service_unavailable") };

/// How a request is recorded whose client disconnected; the status is nginx's.
pub(crate) const CLIENT_CLOSED: Outcome = Outcome { status: 499, code: Some("client_closed") };

#[derive(Debug)]
pub(crate) struct ApiError {
    code: ErrorCode,
    message: Cow<'static, str>,
    /// Whether the same request may succeed later without being run twice.
    is_retryable: bool,
    retry_after_seconds: Option<u64>,
    cause: Option<String>,
    is_disconnected: bool,
}

impl ApiError {
    pub(crate) fn not_found(message: String) -> Self {
        Self { message: message.into(), ..Self::from(ErrorCode::NotFound) }
    }

    /// The key has no permission for this request until the budget renews, or other requests release their reservations.
    pub(crate) fn over_budget(refusal: &BudgetRefusal) -> Self {
        let BudgetRefusal { scope, budget, used, reserved, needed, renews_at } = refusal;
        let message = format!(
            "{} budget of {} does not cover this request: {} used, {} reserved by requests in flight, {} left; this \
             request may need {}. It renews at {}.",
            format::whose(*scope),
            format::limit(budget.kind(), budget.amount),
            format::number(*used),
            format::number(*reserved),
            format::number(budget.amount.saturating_sub(used + reserved)),
            format::number(*needed),
            format::rfc3339_seconds(*renews_at),
        );
        Self { message: message.into(), ..Self::from(ErrorCode::InsufficientPermission) }
    }

    /// A rate or the number of requests in flight.
    pub(crate) fn limit_reached(reached: &LimitReached) -> Self {
        let LimitReached { scope, kind, amount, retry_after } = reached;
        let seconds = retry_after.as_secs_f64().ceil() as u64;
        let message = format!(
            "{} limit of {} is reached. Please try again in {seconds} s.",
            format::whose(*scope),
            format::limit(*kind, *amount),
        );
        Self { message: message.into(), ..Self::from(ErrorCode::ServiceUnavailable) }.retry_after(seconds)
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self { message: message.into(), ..Self::from(ErrorCode::InvalidRequest) }
    }

    pub(crate) fn inference_error(cause: impl Display, retry_after_seconds: Option<u64>) -> Self {
        Self { retry_after_seconds, ..Self::from(ErrorCode::InferenceError).caused_by(cause) }
    }

    /// A healthy runtime refuses this request.
    pub(crate) fn refused_by_runtime(cause: impl Display) -> Self {
        let message = "The inference service refused this request; sending it again will not help.".into();
        Self { message, ..Self::inference_error(cause, None) }.without_retry()
    }

    pub(crate) fn search_unavailable(cause: impl Display) -> Self {
        Self::from(ErrorCode::SearchUnavailable).caused_by(cause)
    }

    pub(crate) fn unavailable(message: &'static str) -> Self {
        Self { message: message.into(), ..Self::from(ErrorCode::ServiceUnavailable) }
    }

    pub(crate) fn at_capacity() -> Self {
        Self::at_capacity_for(RETRY_AFTER_SECONDS)
    }

    pub(crate) fn at_capacity_for(seconds: u64) -> Self {
        Self::unavailable("The service is at capacity. Please try again later.").retry_after(seconds)
    }

    pub(crate) fn unconfigured() -> Self {
        Self::unavailable("No inference runtime is configured.").without_retry()
    }

    pub(crate) fn require_available(availability: Availability) -> Result<(), Self> {
        let later = |message| Self::unavailable(message).retry_after(RETRY_AFTER_SECONDS);
        Err(match availability {
            Availability::Available => return Ok(()),
            Availability::Unconfigured => Self::unconfigured(),
            Availability::Unloadable => Self::unavailable("The model could not be loaded.").without_retry(),
            Availability::Starting => later("The model is being loaded. Please try again later."),
            Availability::Unresponsive => later("The model does not respond now. Please try again later."),
        })
    }

    /// The completion was run, and its row may still be written: clients must not retry automatically.
    pub(crate) fn unrecorded(cause: impl Display) -> Self {
        Self::unavailable("The usage of this request could not be recorded.").without_retry().caused_by(cause)
    }

    /// The stop timeout is over.
    pub(crate) fn stopping() -> Self {
        Self::unavailable("The service is stopping and could not finish this request.")
    }

    pub(crate) fn from_upload(error: UploadError) -> Self {
        match error {
            UploadError::TooLarge => ErrorCode::PayloadTooLarge.into(),
            UploadError::OverBudget => Self::at_capacity(),
            UploadError::TimedOut => Self::invalid("The body did not arrive in time."),
            UploadError::BadFraming => Self::invalid("The body is not framed as its headers say."),
            UploadError::Disconnected => Self::disconnected(),
        }
    }

    pub(crate) fn from_rejection(why: Rejection) -> Self {
        match why {
            Rejection::MalformedHead => Self::invalid("The request line or a header is not valid HTTP."),
            Rejection::HeadTooLarge => Self::invalid(format!(
                "The request's head is too large: at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers are accepted."
            )),
            Rejection::PlaintextOnTls => {
                Self::invalid("This address speaks TLS. Send the request to its https:// URL.")
            }
            Rejection::TooManyConnections => Self::at_capacity(),
        }
    }

    pub(crate) fn internal(cause: impl Display) -> Self {
        Self::unavailable("The service failed on this request. The fault is logged under its request id.")
            .without_retry()
            .caused_by(cause)
    }

    /// The cause is for the log only.
    pub(crate) fn caused_by(self, cause: impl Display) -> Self {
        Self { cause: Some(cause.to_string()), ..self }
    }

    /// The client has disconnected, so no response is sent.
    pub(crate) fn disconnected() -> Self {
        Self { is_disconnected: true, ..Self::invalid("The body is incomplete.") }
    }

    fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_seconds: Some(seconds), ..self }
    }

    /// Whether the API key is not accepted.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.code == ErrorCode::InvalidApiKey
    }

    pub(crate) fn outcome(&self) -> Outcome {
        if self.is_disconnected {
            return CLIENT_CLOSED;
        }
        Outcome { status: self.code.status(), code: Some(self.code.as_str()) }
    }

    /// Logs the cause, if there is one, and returns the response.
    pub(crate) fn into_response(self, id: RequestId) -> Response {
        if let Some(cause) = &self.cause {
            tracing::warn!(request_id = %id, code = self.code.as_str(), cause, "a request failed");
        }
        let status = StatusCode::from_u16(self.code.status()).expect("the table holds valid statuses");
        let mut response = json(status, wire::envelope(self.code, &self.message, id), id);
        let should_retry = if self.is_retryable { "true" } else { "false" };
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static(should_retry));
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == ErrorCode::InvalidApiKey {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// Clients must not retry this automatically.
    pub(crate) fn without_retry(self) -> Self {
        Self { is_retryable: false, ..self }
    }
}

impl From<ErrorCode> for ApiError {
    fn from(code: ErrorCode) -> Self {
        Self {
            code,
            message: code.default_message().into(),
            is_retryable: code.is_transient(),
            retry_after_seconds: None,
            cause: None,
            is_disconnected: false,
        }
    }
}
