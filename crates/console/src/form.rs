//! Posted forms. A `Form` exists only if it came from one of our own pages: the browser says so by its origin, and the
//! page by a token that follows from a secret cookie.

use http::header;
use subtle::ConstantTimeEq;

use crate::reply::Problem;
use crate::visit::{Fields, Visit};

/// The name of the token's field.
pub(crate) const TOKEN: &str = "token";
/// The same for requests that scripts make.
const TOKEN_HEADER: header::HeaderName = header::HeaderName::from_static("x-form-token");

/// What was posted from our own pages.
pub(crate) struct Form(Fields);

impl Form {
    /// Reads a form that must carry that token.
    pub(crate) async fn read(visit: &mut Visit, origin: &str, token: &str) -> Result<Self, Problem> {
        accept_origin(visit, origin)?;
        let body = visit.body().await.ok_or(Problem::Unreadable)?;
        let fields = Fields::parse(&body);
        if same(fields.get(TOKEN), token) { Ok(Self(fields)) } else { Err(Problem::Forged) }
    }

    /// Reads what a script posts, which carries the token in a header.
    pub(crate) async fn read_json(visit: &mut Visit, origin: &str, token: &str) -> Result<bytes::Bytes, Problem> {
        accept_origin(visit, origin)?;
        if !visit.header(TOKEN_HEADER).is_some_and(|given| same(given, token)) {
            return Err(Problem::Forged);
        }
        visit.body().await.ok_or(Problem::Unreadable)
    }

    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name)
    }

    /// As it was typed: spaces belong to a password.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.raw(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        !self.0.get(name).is_empty()
    }
}

/// Browsers say where a form comes from; whoever does not say must at least not say that it is another site.
fn accept_origin(visit: &Visit, origin: &str) -> Result<(), Problem> {
    let site = visit.header(header::HeaderName::from_static("sec-fetch-site"));
    let ours = match visit.header(header::ORIGIN) {
        Some(given) => given == origin || is_same_loopback(given, origin),
        None => site.is_none_or(|site| site == "same-origin"),
    };
    if ours { Ok(()) } else { Err(Problem::Forged) }
}

/// On one machine, `localhost` and `127.0.0.1` are both used for the same thing.
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

fn same(given: &str, expected: &str) -> bool {
    given.as_bytes().ct_eq(expected.as_bytes()).into()
}
