//! Forms: posted ones, and those that a page shows. A `Form` exists only if it came from a page of the console: the
//! browser's `Origin` header and a CSRF token, which is derived from a secret cookie, prove it.

use std::fmt::Display;

use bytes::Bytes;
use http::{HeaderName, StatusCode, header};
use maud::Markup;
use subtle::ConstantTimeEq;

use crate::credentials::TooManyAttempts;
use crate::page::{ConsoleError, ConsoleRequest, ConsoleResult, Fields, error_message, sentence};

pub(crate) const CSRF_FIELD: &str = "token";
/// The CSRF token of requests that scripts send.
const CSRF_HEADER: HeaderName = HeaderName::from_static("x-form-token");

const MAX_FORM_BYTES: usize = 16 << 10;

pub(crate) struct Form(Fields);

impl Form {
    pub(crate) async fn parse(request: &mut ConsoleRequest, origin: &str, csrf_token: &str) -> ConsoleResult<Self> {
        check_origin(request, origin)?;
        let body = request.body(MAX_FORM_BYTES).await?;
        let fields = Fields::parse(&body);
        if constant_time_eq(fields.get(CSRF_FIELD), csrf_token) { Ok(Self(fields)) } else { Err(ConsoleError::Forged) }
    }

    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name)
    }

    /// Untrimmed: spaces belong to a password.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.raw(name)
    }

    /// All but the CSRF token.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.pairs().filter(|(name, _)| *name != CSRF_FIELD)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        !self.0.get(name).is_empty()
    }

    /// The same form, to show it again with the reason.
    pub(crate) fn refused(&self, refusal: Refusal) -> Draft {
        Draft { fields: self.0.clone(), refusal: Some(refusal) }
    }
}

/// Why a form was refused, for the person who sent it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// A field is invalid.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// A field is invalid, as its error says.
    pub(crate) fn from_error(error: impl Display) -> Self {
        Self::invalid(sentence(&error))
    }
}

impl From<TooManyAttempts> for Refusal {
    fn from(refusal: TooManyAttempts) -> Self {
        Self::new(refusal.status(), refusal.message())
    }
}

/// What a page's form contains: nothing at first, or what was typed, and why it was refused.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    fields: Fields,
    refusal: Option<Refusal>,
}

impl Draft {
    /// With one field filled in.
    pub(crate) fn with(name: &str, value: &str) -> Self {
        Self { fields: Fields::default().set(name, value), refusal: None }
    }

    pub(crate) fn get(&self, name: &str) -> &str {
        self.fields.get(name)
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// The status of the page.
    pub(crate) fn status(&self) -> StatusCode {
        self.refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status)
    }

    /// The reason, if the form was refused.
    pub(crate) fn message(&self) -> Markup {
        error_message(self.refusal.as_ref().map(|refusal| refusal.text.as_str()))
    }
}

/// The body that a script posts, with the CSRF token in a header.
pub(crate) async fn read_json(request: &mut ConsoleRequest, origin: &str, csrf_token: &str) -> ConsoleResult<Bytes> {
    check_origin(request, origin)?;
    if !request.header(CSRF_HEADER).is_some_and(|given| constant_time_eq(given, csrf_token)) {
        return Err(ConsoleError::Forged);
    }
    request.body(wire::MAX_BODY_BYTES).await
}

/// Without `Origin`, the browser must at least not report another site in `Sec-Fetch-Site`.
fn check_origin(request: &ConsoleRequest, origin: &str) -> ConsoleResult<()> {
    let is_ours = match request.header(header::ORIGIN) {
        Some(given) => given == origin || is_same_loopback(given, origin),
        None => request.header(HeaderName::from_static("sec-fetch-site")).is_none_or(|site| site == "same-origin"),
    };
    if is_ours { Ok(()) } else { Err(ConsoleError::Forged) }
}

/// On one machine, people use both `localhost` and `127.0.0.1`.
fn is_same_loopback(given: &str, origin: &str) -> bool {
    let parse = |text: &str| url::Url::parse(text).ok();
    let is_loopback = |url: &url::Url| match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    let (Some(given), Some(origin)) = (parse(given), parse(origin)) else { return false };
    let same = given.scheme() == origin.scheme() && given.port_or_known_default() == origin.port_or_known_default();
    same && is_loopback(&given) && is_loopback(&origin)
}

fn constant_time_eq(given: &str, expected: &str) -> bool {
    given.as_bytes().ct_eq(expected.as_bytes()).into()
}
