//! One request to the console, and the fields of its query or form.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Method, Request, header};
use hyper::body::Incoming;
use transport::{Body, BodyBudget, BodyLimits, BodyPermit, Upload, UploadError, network};
use url::form_urlencoded;

use crate::error::{ConsoleError, ConsoleResult};

const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_USER_AGENT_CHARS: usize = 300;

pub(crate) struct ConsoleRequest {
    pub(crate) head: Parts,
    pub(crate) client: IpAddr,
    pub(crate) query: Fields,
    upload: Option<Upload>,
    body_budget: BodyBudget<IpAddr>,
    /// Held for as long as the request: its form is made of the body's bytes.
    body_permit: Option<BodyPermit<IpAddr>>,
}

impl ConsoleRequest {
    /// Its body takes its bytes from the budget, for the visitor's network.
    pub(crate) fn new(client: IpAddr, request: Request<Incoming>, body_budget: BodyBudget<IpAddr>) -> Self {
        let (head, incoming) = request.into_parts();
        let upload = Some(Upload::new(incoming, &head.headers));
        let query = Fields::parse(head.uri.query().unwrap_or_default().as_bytes());
        Self { head, client, query, upload, body_budget, body_permit: None }
    }

    pub(crate) fn is_post(&self) -> bool {
        self.head.method == Method::POST
    }

    /// Sent by a script of ours.
    pub(crate) fn is_json(&self) -> bool {
        self.head.headers.get(header::CONTENT_TYPE).is_some_and(|sent| sent.as_bytes().starts_with(b"application/json"))
    }

    /// The segments of the path; none for `/`.
    pub(crate) fn path(&self) -> Vec<&str> {
        self.head.uri.path().split('/').filter(|part| !part.is_empty()).collect()
    }

    /// Path and query.
    pub(crate) fn target(&self) -> &str {
        self.head.uri.path_and_query().map_or("/", |target| target.as_str())
    }

    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// `None` also for a cookie that was sent twice.
    pub(crate) fn cookie(&self, name: &str) -> Option<&str> {
        let pairs = self.head.headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let pairs = pairs.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut values = pairs.filter(|(given, _)| *given == name).map(|(_, value)| value);
        values.next().filter(|_| values.next().is_none())
    }

    pub(crate) async fn body(&mut self, max_bytes: usize) -> ConsoleResult<Bytes> {
        let upload = self.upload.take().ok_or(ConsoleError::Unreadable)?;
        let limits = BodyLimits::new(max_bytes, BODY_IDLE_TIMEOUT);
        match upload.read(limits, &self.body_budget, network(self.client)).await {
            Ok(Body { bytes, permit }) => {
                self.body_permit = Some(permit);
                Ok(bytes)
            }
            Err(UploadError::OverBudget) => Err(ConsoleError::Busy),
            Err(_) => Err(ConsoleError::Unreadable),
        }
    }

    /// For the audit log and the list of sessions.
    pub(crate) fn origin(&self) -> store::Origin {
        let agent: String =
            self.header(header::USER_AGENT).unwrap_or_default().chars().take(MAX_USER_AGENT_CHARS).collect();
        store::Origin { address: self.client.to_string(), agent }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        Self(form_urlencoded::parse(bytes).into_owned().collect())
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Trimmed; empty if there is no such field.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// As it was typed; empty if there is no such field.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    /// A query with one field changed, or removed by an empty value.
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

    /// A page of ours with one field in its query.
    pub(crate) fn with_path(&self, path: &str, name: &str, value: &str) -> String {
        format!("{path}{}", self.with(name, value))
    }

    pub(crate) fn without(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(given, _)| !names.contains(&given.as_str())).cloned().collect())
    }

    /// With one field changed, or removed by an empty value.
    pub(crate) fn set(&self, name: &str, value: &str) -> Self {
        let kept = self.0.iter().filter(|(given, _)| given != name).cloned();
        let changed = (!value.is_empty()).then(|| (name.to_owned(), value.to_owned()));
        Self(kept.chain(changed).collect())
    }

    pub(crate) fn only(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(given, _)| names.contains(&given.as_str())).cloned().collect())
    }
}
