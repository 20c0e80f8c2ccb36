//! Posted forms. A `Form` exists only if it came from a page of the console: the browser's `Origin` header and a CSRF
//! token, which is derived from a secret cookie, prove it.

use bytes::Bytes;
use http::HeaderName;
use http::header;
use subtle::ConstantTimeEq;

use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::request::{ConsoleRequest, Fields};

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
