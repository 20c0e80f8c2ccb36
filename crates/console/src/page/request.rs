//! One request to the console, and the fields of its query or form.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Method, Request, header};
use hyper::body::Incoming;
use store::AccountId;
use transport::{Body, BodyBudget, BodyLimits, BodyPermit, ClientConnection, Upload, UploadError};
use url::form_urlencoded;

use crate::page::{ConsoleError, ConsoleResult};

const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// For visitors who are not signed in: room for names, addresses, passwords, tokens of the identity provider and a path
/// to return to. Kept small because a form stays in memory while its password is verified.
const MAX_ANONYMOUS_BYTES: usize = 16 << 10;
const ANONYMOUS_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_USER_AGENT_CHARS: usize = 300;

pub(crate) struct ConsoleRequest {
    pub(crate) head: Parts,
    pub(crate) client: IpAddr,
    pub(crate) query: Fields,
    upload: Option<Upload>,
    connection: ClientConnection,
    /// The signed-in person, and the budget that all signed-in people share.
    person: Option<(AccountId, BodyBudget<AccountId>)>,
    /// Held for as long as the request, because its form keeps the body's bytes.
    body_permit: Option<BodyPermit<AccountId>>,
}

impl ConsoleRequest {
    pub(crate) fn new(connection: ClientConnection, request: Request<Incoming>) -> Self {
        let (head, incoming) = request.into_parts();
        let upload = Some(Upload::new(incoming, &head.headers));
        let query = Fields::parse(head.uri.query().unwrap_or_default().as_bytes());
        Self { head, client: connection.address, query, upload, connection, person: None, body_permit: None }
    }

    /// Marks the request as that of a signed-in person: its connection is not closed in favour of anonymous visitors, and
    /// its body takes its bytes from a budget that they cannot use.
    pub(crate) fn identify(&mut self, person: AccountId, budget: &BodyBudget<AccountId>) {
        self.connection.identify();
        self.person = Some((person, budget.clone()));
    }

    pub(crate) fn is_post(&self) -> bool {
        self.head.method == Method::POST
    }

    /// Whether one of the console's scripts sent it.
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
        let read = match &self.person {
            Some((person, budget)) => {
                let limits = BodyLimits::new(max_bytes, BODY_IDLE_TIMEOUT);
                upload.read(limits, budget, *person).await.map(|Body { bytes, permit }| (bytes, Some(permit)))
            }
            None => {
                let limits = BodyLimits::within(max_bytes.min(MAX_ANONYMOUS_BYTES), ANONYMOUS_TIMEOUT);
                upload.read_form(limits).await.map(|bytes| (bytes, None))
            }
        };
        let (bytes, permit) = read.map_err(|error| match error {
            UploadError::OverBudget => ConsoleError::Busy,
            _ => ConsoleError::Unreadable,
        })?;
        self.body_permit = permit;
        Ok(bytes)
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

    /// A field that may be empty; `None` if it is malformed.
    pub(crate) fn optional<T>(&self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
        match self.get(name) {
            "" => Some(None),
            text => parse(text).map(Some),
        }
    }

    /// As it was typed; empty if there is no such field.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    /// The query with one field changed; an empty value removes the field.
    pub(crate) fn with(&self, name: &str, value: &str) -> String {
        let changed = self.set(name, value);
        let fields = changed.pairs().filter(|(_, value)| !value.is_empty());
        format!("?{}", form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish())
    }

    /// `path` with that query.
    pub(crate) fn with_path(&self, path: &str, name: &str, value: &str) -> String {
        format!("{path}{}", self.with(name, value))
    }

    pub(crate) fn without(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(given, _)| !names.contains(&given.as_str())).cloned().collect())
    }

    /// The fields with one of them changed; an empty value removes it.
    pub(crate) fn set(&self, name: &str, value: &str) -> Self {
        let kept = self.0.iter().filter(|(given, _)| given != name).cloned();
        let changed = (!value.is_empty()).then(|| (name.to_owned(), value.to_owned()));
        Self(kept.chain(changed).collect())
    }

    pub(crate) fn only(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(given, _)| names.contains(&given.as_str())).cloned().collect())
    }
}
