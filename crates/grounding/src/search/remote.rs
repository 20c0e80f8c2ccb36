//! Search on another server: one deadline for each search, one breaker for all.

use std::time::{Duration, Instant};

use breaker::{Breaker, CallToken, Verdict};
use parking_lot::Mutex;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use super::clients::{Clients, Transport};
use super::error::SearchError;
use super::exchange::{MAX_RESPONSE_BYTES, SearchRequest, send};
use super::url::{Kind, RemoteUrl};
use super::vector_field::VectorField;
use super::{opensearch, searxng};
use crate::Passage;

const MAX_LIMIT: usize = 100;
/// For `check` and `probe`: reveals nothing about a user, and every search engine finds it.
const PROBE_QUERY: &str = "encyclopedia";
/// How long an index's mapping is taken to be unchanged.
const MAPPING_INTERVAL: Duration = Duration::from_secs(30);

/// Shared by all threads. Each tokio runtime has separate connections.
pub struct RemoteSearch {
    url: RemoteUrl,
    clients: Clients,
    deadline: Duration,
    breaker: Mutex<Breaker>,
    epoch: Instant,
    /// The fields with vectors, and when they were read.
    vector_fields: Mutex<Option<(Instant, Vec<VectorField>)>>,
}

impl RemoteSearch {
    /// The deadline covers a whole search, from connecting to the last byte.
    pub fn new(url: RemoteUrl, deadline: Duration) -> Result<Self, SearchError> {
        let clients = Clients::new(if url.is_encrypted() { Transport::Tls } else { Transport::Plain })?;
        Ok(Self {
            url,
            clients,
            deadline,
            breaker: Mutex::default(),
            epoch: Instant::now(),
            vector_fields: Mutex::default(),
        })
    }

    pub fn url(&self) -> &RemoteUrl {
        &self.url
    }

    /// Whether recent searches succeeded.
    pub fn is_healthy(&self) -> bool {
        self.breaker.lock().is_closed()
    }

    /// Best first. Dropping the future closes the connection and counts neither as success nor as failure.
    pub async fn search(&self, query: &str, limit: usize) -> Result<Vec<Passage>, SearchError> {
        self.search_traced(&HeaderMap::new(), query, None, limit).await
    }

    /// Also sends the headers of the trace context, and the query's vector if a field of the index has vectors of its size.
    /// If the server refuses the vector, it is asked for the words alone, until the mapping is read again.
    pub async fn search_traced(
        &self,
        trace: &HeaderMap,
        query: &str,
        vector: Option<&[f32]>,
        limit: usize,
    ) -> Result<Vec<Passage>, SearchError> {
        let limit = limit.min(MAX_LIMIT);
        let field = match vector {
            Some(numbers) => self.vector_fields().await.into_iter().find(|field| field.dimensions == numbers.len()),
            None => None,
        };
        let vector = field.as_ref().zip(vector);
        let Some(request) = self.search_request(query, vector, limit) else { return Ok(Vec::new()) };
        let mut attempt = TrackedAttempt::begin(self).ok_or(SearchError::CircuitOpen)?;
        let mut found = self.send(request, limit, trace).await;
        if vector.is_some() && matches!(found, Err(SearchError::Refused(StatusCode::BAD_REQUEST))) {
            *self.vector_fields.lock() = Some((Instant::now(), Vec::new()));
            if let Some(request) = self.search_request(query, None, limit) {
                found = self.send(request, limit, trace).await;
            }
        }
        attempt.verdict = found.as_ref().map_or_else(SearchError::verdict, |_| Verdict::Good);
        found
    }

    /// The fields of the index with vectors. None on other servers, and while the mapping cannot be read.
    pub async fn vector_fields(&self) -> Vec<VectorField> {
        let Kind::Opensearch { index } = &self.url.kind else { return Vec::new() };
        if let Some((read, fields)) = &*self.vector_fields.lock()
            && read.elapsed() < MAPPING_INTERVAL
        {
            return fields.clone();
        }
        let request = opensearch::mapping_request(&self.url, index);
        let fields = match self.exchange(request, self.deadline / 4, &HeaderMap::new()).await {
            Ok(body) => VectorField::parse_mapping(&body),
            Err(_reported_by_the_search) => Vec::new(),
        };
        *self.vector_fields.lock() = Some((Instant::now(), fields.clone()));
        fields
    }

    /// One search through the breaker, so that a server that has recovered is used again.
    pub async fn probe(&self) -> Result<(), SearchError> {
        self.search(PROBE_QUERY, 1).await.map(drop)
    }

    /// Searches once without the breaker, and describes the result.
    pub async fn check(&self) -> Result<String, SearchError> {
        let started = Instant::now();
        let request = match &self.url.kind {
            Kind::Searxng => searxng::search_request(&self.url, PROBE_QUERY),
            Kind::Opensearch { index } => Some(opensearch::probe_request(&self.url, index, PROBE_QUERY, self.deadline)),
        };
        let found = match request {
            Some(request) => self.send(request, 1, &HeaderMap::new()).await?,
            None => Vec::new(),
        };
        let (name, finding) = match (&self.url.kind, found.is_empty()) {
            (Kind::Searxng, false) => ("SearXNG", "its JSON format is enabled"),
            (Kind::Searxng, true) => ("SearXNG", "it found nothing: check that its engines are enabled"),
            (Kind::Opensearch { .. }, false) => ("OpenSearch", "the documents of the index can be read"),
            (Kind::Opensearch { .. }, true) => ("OpenSearch", "the index is empty"),
        };
        Ok(format!("{name} at {} responds in {} ms; {finding}", self.url.base_url(), started.elapsed().as_millis()))
    }

    /// `None` if there is nothing to search for.
    fn search_request(
        &self,
        query: &str,
        vector: Option<(&VectorField, &[f32])>,
        limit: usize,
    ) -> Option<SearchRequest> {
        if limit == 0 || query.trim().is_empty() {
            return None;
        }
        match &self.url.kind {
            Kind::Searxng => searxng::search_request(&self.url, query),
            Kind::Opensearch { index } => {
                Some(opensearch::search_request(&self.url, index, query, vector, limit, self.deadline))
            }
        }
    }

    async fn send(&self, request: SearchRequest, limit: usize, trace: &HeaderMap) -> Result<Vec<Passage>, SearchError> {
        let body = self.exchange(request, self.deadline, trace).await?;
        // Up to 2 MiB take milliseconds, which would delay the other requests of this thread.
        let kind = self.url.kind.clone();
        let parsed = tokio::task::spawn_blocking(move || match &kind {
            Kind::Searxng => searxng::parse_passages(&body, limit),
            Kind::Opensearch { index } => opensearch::parse_passages(&body, index, limit),
        });
        parsed.await.unwrap_or(Err(SearchError::Malformed))
    }

    /// The body of the response.
    async fn exchange(
        &self,
        request: SearchRequest,
        deadline: Duration,
        trace: &HeaderMap,
    ) -> Result<Vec<u8>, SearchError> {
        let request = request.build(&self.clients.for_current_runtime()?, self.url.credentials.as_ref());
        let request = request.headers(trace.clone());
        let status_error = match &self.url.kind {
            Kind::Searxng => searxng::status_error,
            Kind::Opensearch { .. } => opensearch::status_error,
        };
        let body = tokio::time::timeout(deadline, send(request, MAX_RESPONSE_BYTES, status_error)).await;
        body.unwrap_or(Err(SearchError::TimedOut(deadline)))
    }

    fn now_millis(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }
}

/// A search in flight. Reports its verdict to the breaker when it is dropped.
struct TrackedAttempt<'a> {
    remote: &'a RemoteSearch,
    verdict: Verdict,
    attempt: CallToken,
}

impl<'a> TrackedAttempt<'a> {
    fn begin(remote: &'a RemoteSearch) -> Option<Self> {
        let mut breaker = remote.breaker.lock();
        if !breaker.allows(remote.now_millis()) {
            return None;
        }
        Some(Self { remote, verdict: Verdict::Unclear, attempt: breaker.begin() })
    }
}

impl Drop for TrackedAttempt<'_> {
    fn drop(&mut self) {
        let now = self.remote.now_millis();
        self.remote.breaker.lock().end(self.attempt, self.verdict, now);
    }
}
