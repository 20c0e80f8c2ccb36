//! Search on another server: one deadline for each search, one breaker for all.

use std::future::Ready;
use std::time::{Duration, Instant};

use breaker::{Breaker, CallToken, Verdict};
use parking_lot::Mutex;
use reqwest::header::HeaderMap;
use tokio::time::timeout;

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
    vector_fields: tokio::sync::Mutex<Option<(Instant, Vec<VectorField>)>>,
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
            vector_fields: tokio::sync::Mutex::default(),
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
        self.search_traced(&HeaderMap::new(), query, None::<Ready<_>>, limit).await
    }

    /// Also sends the headers of the trace context. If the index has vectors, the query's vector is awaited and searched for
    /// in the same query. All of that may take half of the deadline; if it fails, the words are searched for alone, and
    /// vectors are not used until the mapping is read again.
    pub async fn search_traced(
        &self,
        trace: &HeaderMap,
        query: &str,
        vector: Option<impl Future<Output = Option<Vec<f32>>>>,
        limit: usize,
    ) -> Result<Vec<Passage>, SearchError> {
        let limit = limit.min(MAX_LIMIT);
        let Some(words) = self.search_request(query, None, limit) else { return Ok(Vec::new()) };
        let mut attempt = TrackedAttempt::begin(self).ok_or(SearchError::CircuitOpen)?;
        let search = async {
            let Some(vector) = vector else { return self.send(words, limit, trace).await };
            let both = timeout(self.deadline / 2, self.search_with_vector(trace, query, vector, limit));
            if let Ok(Some(found)) = both.await {
                return Ok(found);
            }
            let found = self.send(words, limit, trace).await;
            if found.is_ok()
                && let Ok(mut known) = self.vector_fields.try_lock()
                && let Some((_, fields)) = &mut *known
                && !fields.is_empty()
            {
                tracing::warn!(
                    "vectors could not be searched; documents are found by their words alone for up to 30 s"
                );
                fields.clear();
            }
            found
        };
        let found = timeout(self.deadline, search).await.unwrap_or(Err(SearchError::TimedOut(self.deadline)));
        attempt.verdict = found.as_ref().map_or_else(SearchError::verdict, |_| Verdict::Good);
        found
    }

    /// `None` if it fails, or the index has no vectors of this size.
    async fn search_with_vector(
        &self,
        trace: &HeaderMap,
        query: &str,
        vector: impl Future<Output = Option<Vec<f32>>>,
        limit: usize,
    ) -> Option<Vec<Passage>> {
        let fields = self.vector_fields().await;
        if fields.is_empty() {
            return None;
        }
        let vector = vector.await?;
        let field = fields.iter().find(|field| field.dimensions == vector.len())?;
        self.send(self.search_request(query, Some((field, &vector)), limit)?, limit, trace).await.ok()
    }

    /// The fields of the index with vectors. None on other servers, and while the mapping cannot be read.
    pub async fn vector_fields(&self) -> Vec<VectorField> {
        let Kind::Opensearch { index } = &self.url.kind else { return Vec::new() };
        let mut known = self.vector_fields.lock().await;
        if let Some((read, fields)) = &*known
            && read.elapsed() < MAPPING_INTERVAL
        {
            return fields.clone();
        }
        let (request, no_trace) = (opensearch::mapping_request(&self.url, index), HeaderMap::new());
        let fields = match timeout(self.deadline / 4, self.exchange(request, &no_trace)).await {
            Ok(Ok(body)) => tokio::task::spawn_blocking(move || VectorField::parse_mapping(&body)).await,
            Ok(Err(_)) | Err(_) => Ok(Vec::new()),
        };
        let fields = fields.unwrap_or_default();
        *known = Some((Instant::now(), fields.clone()));
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
            Some(request) => {
                let found = timeout(self.deadline, self.send(request, 1, &HeaderMap::new())).await;
                found.unwrap_or(Err(SearchError::TimedOut(self.deadline)))?
            }
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
                let deadline = if vector.is_some() { self.deadline / 2 } else { self.deadline };
                Some(opensearch::search_request(&self.url, index, query, vector, limit, deadline))
            }
        }
    }

    async fn send(&self, request: SearchRequest, limit: usize, trace: &HeaderMap) -> Result<Vec<Passage>, SearchError> {
        let body = self.exchange(request, trace).await?;
        // Up to 2 MiB take milliseconds, which would delay the other requests of this thread.
        let kind = self.url.kind.clone();
        let parsed = tokio::task::spawn_blocking(move || match &kind {
            Kind::Searxng => searxng::parse_passages(&body, limit),
            Kind::Opensearch { index } => opensearch::parse_passages(&body, index, limit),
        });
        parsed.await.unwrap_or(Err(SearchError::Malformed))
    }

    /// The body of the response.
    async fn exchange(&self, request: SearchRequest, trace: &HeaderMap) -> Result<Vec<u8>, SearchError> {
        let request = request.build(&self.clients.for_current_runtime()?, self.url.credentials.as_ref());
        let status_error = match &self.url.kind {
            Kind::Searxng => searxng::status_error,
            Kind::Opensearch { .. } => opensearch::status_error,
        };
        send(request.headers(trace.clone()), MAX_RESPONSE_BYTES, status_error).await
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
