//! One request to the console, taken apart.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, header};
use hyper::body::Incoming;
use transport::{BodyLimits, Upload};
use url::form_urlencoded;

/// How long a body may pause.
const BODY_IDLE: Duration = Duration::from_secs(15);

pub(crate) struct Visit {
    pub(crate) head: Parts,
    pub(crate) visitor: IpAddr,
    pub(crate) query: Fields,
    upload: Option<Upload>,
}

impl Visit {
    pub(crate) fn new(visitor: IpAddr, request: Request<Incoming>) -> Self {
        let (head, incoming) = request.into_parts();
        let upload = Some(Upload::new(incoming, &head.headers));
        let query = Fields::parse(head.uri.query().unwrap_or_default().as_bytes());
        Self { head, visitor, query, upload }
    }

    pub(crate) fn is_post(&self) -> bool {
        self.head.method == Method::POST
    }

    /// The parts of the path between its slashes; none for `/`.
    pub(crate) fn path(&self) -> Vec<&str> {
        self.head.uri.path().split('/').filter(|part| !part.is_empty()).collect()
    }

    /// Path and query, to come back to.
    pub(crate) fn target(&self) -> &str {
        self.head.uri.path_and_query().map_or("/", |target| target.as_str())
    }

    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        text(&self.head.headers, name)
    }

    /// A cookie's value, if it was sent once and only once.
    pub(crate) fn cookie(&self, name: &str) -> Option<&str> {
        let pairs = self.head.headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let pairs = pairs.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut values = pairs.filter(|(given, _)| *given == name).map(|(_, value)| value);
        values.next().filter(|_| values.next().is_none())
    }

    /// The body, at most as large as the API's; `None` if it cannot be had.
    pub(crate) async fn body(&mut self) -> Option<Bytes> {
        self.upload.take()?.read(BodyLimits::new(wire::MAX_BODY_BYTES, BODY_IDLE)).await.ok()
    }

    /// Where from, for the audit log and the list of sessions.
    pub(crate) fn origin(&self) -> store::Origin {
        let agent: String = self.header(header::USER_AGENT).unwrap_or_default().chars().take(300).collect();
        store::Origin { address: self.visitor.to_string(), agent }
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Names and values of a query or of a form.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        Self(form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// The value of a field, trimmed; empty if there is none.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// The value of a field as it was typed; empty if there is none.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    /// As a query with one field changed; an empty value takes it away.
    pub(crate) fn with(&self, name: &str, value: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (given, kept) in self.0.iter().filter(|(given, kept)| given != name && !kept.is_empty()) {
            query.append_pair(given, kept);
        }
        if !value.is_empty() {
            query.append_pair(name, value);
        }
        format!("?{}", query.finish())
    }

    /// Only these fields.
    pub(crate) fn only(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(given, _)| names.contains(&given.as_str())).cloned().collect())
    }
}
