//! What a visit is answered with, and the headers that every answer carries.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use maud::Markup;
use store::StoreError;
use transport::{Response, ResponseBody};

/// Nothing but our own files; no frames around us; forms go to us alone.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// An answer on its way.
pub(crate) struct Reply(Response);

impl Reply {
    pub(crate) fn page(markup: Markup) -> Self {
        Self::page_as(StatusCode::OK, markup)
    }

    pub(crate) fn page_as(status: StatusCode, markup: Markup) -> Self {
        Self::new(status, "text/html; charset=utf-8", markup.into_string())
    }

    /// Something to be saved as a file.
    pub(crate) fn download(name: &str, kind: &'static str, body: impl Into<ResponseBody>) -> Self {
        let disposition = format!("attachment; filename=\"{name}\"");
        Self::new(StatusCode::OK, kind, body).with(header::CONTENT_DISPOSITION, &disposition)
    }

    /// Something for programs to read.
    pub(crate) fn json(body: String) -> Self {
        Self::new(StatusCode::OK, "application/json", body)
    }

    /// One of our own files, which never changes under its name.
    pub(crate) fn asset(kind: &'static str, body: &'static [u8]) -> Self {
        let mut reply = Self::new(StatusCode::OK, kind, Bytes::from_static(body));
        reply
            .0
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
        reply
    }

    /// Go on there; what was posted is not posted again.
    pub(crate) fn redirect(to: &str) -> Self {
        Self::new(StatusCode::SEE_OTHER, "text/plain", "").with(header::LOCATION, to)
    }

    /// The API's own answer, with our headers.
    pub(crate) fn from_api(answer: Response) -> Self {
        let mut reply = Self(answer);
        reply.0.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        reply
    }

    pub(crate) fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.headers_mut().append(name, value);
        }
        self
    }

    pub(crate) fn into_answer(self) -> Response {
        let mut answer = self.0;
        for (name, value) in HEADERS {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    fn new(status: StatusCode, kind: &'static str, body: impl Into<ResponseBody>) -> Self {
        let mut answer = Response::new(body.into());
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Self(answer)
    }
}

/// Why a visit does not get what it came for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// Not there, or not for this person.
    #[error("There is nothing here, or nothing that you may see.")]
    NotFound,
    /// Posted from somewhere else, or from a page that is too old.
    #[error(
        "This form did not come from a current page of this console. Go back, load the page again, and try once more."
    )]
    Forged,
    /// What was posted cannot be read.
    #[error("What was sent could not be read.")]
    Unreadable,
    /// For administrators.
    #[error("Only administrators can do this.")]
    NotAllowed,
    /// Not signed in.
    #[error("Please sign in.")]
    SignedOut,
    /// A fault of our own.
    #[error("The console failed on this. The fault is logged.")]
    Ours,
    /// The database failed.
    #[error("The database cannot be reached now. Nothing was changed. Please try again in a moment.")]
    Store(#[from] StoreError),
}

impl Problem {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Forged | Self::NotAllowed => StatusCode::FORBIDDEN,
            Self::Unreadable => StatusCode::BAD_REQUEST,
            Self::SignedOut => StatusCode::UNAUTHORIZED,
            Self::Ours => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn heading(&self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Forged => "Not accepted",
            Self::Unreadable => "Not understood",
            Self::NotAllowed => "Not allowed",
            Self::SignedOut => "Signed out",
            Self::Ours => "Failed",
            Self::Store(_) => "Not available",
        }
    }
}
