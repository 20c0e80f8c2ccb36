//! A server that is asked: one deadline over each search, one breaker over all.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use breaker::{Attempt, Breaker, Verdict};
use reqwest::header::HeaderMap;

use super::clients::Clients;
use super::error::SearchError;
use super::exchange::{Question, exchange};
use super::url::{Kind, RemoteUrl};
use super::{opensearch, searxng};
use crate::Passage;

/// More is never asked for.
const MAX_LIMIT: usize = 100;
/// What `check` and `probe` look for: a word that means nothing about anybody and that every search engine finds.
const CHECK_FOR: &str = "encyclopedia";

/// A search server. Shared by every thread; each runtime keeps connections of its own and uses them again.
pub struct RemoteSearch {
    url: RemoteUrl,
    clients: Clients,
    deadline: Duration,
    breaker: Mutex<Breaker>,
    epoch: Instant,
}

impl RemoteSearch {
    /// A server whose every search has to be over, from the connection to the last byte, before the deadline.
    pub fn new(url: RemoteUrl, deadline: Duration) -> Result<Self, SearchError> {
        let clients = Clients::new(&url)?;
        Ok(Self { url, clients, deadline, breaker: Mutex::default(), epoch: Instant::now() })
    }

    /// Where it is.
    pub fn url(&self) -> &RemoteUrl {
        &self.url
    }

    /// Whether it has answered properly of late.
    pub fn is_healthy(&self) -> bool {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner).is_closed()
    }

    /// What it finds, best first, at most `limit`. Dropping the future closes the connection and says nothing about the
    /// server.
    pub async fn search(&self, query: &str, limit: usize) -> Result<Vec<Passage>, SearchError> {
        self.search_traced(&HeaderMap::new(), query, limit).await
    }

    /// Sends the trace context in these headers along.
    pub async fn search_traced(
        &self,
        trace: &HeaderMap,
        query: &str,
        limit: usize,
    ) -> Result<Vec<Passage>, SearchError> {
        let limit = limit.min(MAX_LIMIT);
        let Some(question) = self.question(query, limit) else { return Ok(Vec::new()) };
        let mut turn = Turn::take(self).ok_or(SearchError::Paused)?;
        let found = self.ask(question, limit, trace).await;
        turn.verdict = found.as_ref().map_or_else(SearchError::verdict, |_| Verdict::Good);
        found
    }

    /// Searches for something harmless as a request would, so that everybody learns whether it answers again.
    pub async fn probe(&self) -> Result<(), SearchError> {
        self.search(CHECK_FOR, 1).await.map(drop)
    }

    /// Searches once, past the breaker, and says in a sentence what works.
    pub async fn check(&self) -> Result<String, SearchError> {
        let started = Instant::now();
        let question = match &self.url.kind {
            Kind::Searxng => searxng::question(&self.url, CHECK_FOR),
            Kind::Opensearch { index } => Some(opensearch::probe(&self.url, index, CHECK_FOR, self.deadline)),
        };
        let found = match question {
            Some(question) => self.ask(question, 1, &HeaderMap::new()).await?,
            None => Vec::new(),
        };
        let (name, finding) = match (&self.url.kind, found.is_empty()) {
            (Kind::Searxng, false) => ("SearXNG", "its JSON format is enabled"),
            (Kind::Searxng, true) => ("SearXNG", "it found nothing: look whether any of its engines is enabled"),
            (Kind::Opensearch { .. }, false) => ("OpenSearch", "the documents of the index can be read"),
            (Kind::Opensearch { .. }, true) => ("OpenSearch", "the index is empty"),
        };
        Ok(format!("{name} at {} answers in {} ms; {finding}", self.url.place(), started.elapsed().as_millis()))
    }

    /// What is sent for a query; nothing if there is nothing to ask.
    fn question(&self, query: &str, limit: usize) -> Option<Question> {
        if limit == 0 || query.trim().is_empty() {
            return None;
        }
        match &self.url.kind {
            Kind::Searxng => searxng::question(&self.url, query),
            Kind::Opensearch { index } => Some(opensearch::question(&self.url, index, query, limit, self.deadline)),
        }
    }

    async fn ask(&self, question: Question, limit: usize, trace: &HeaderMap) -> Result<Vec<Passage>, SearchError> {
        let request = question.request(&self.clients.here()?, self.url.credentials.as_ref()).headers(trace.clone());
        let refused = match &self.url.kind {
            Kind::Searxng => searxng::refused,
            Kind::Opensearch { .. } => opensearch::refused,
        };
        let body = tokio::time::timeout(self.deadline, exchange(request, refused)).await;
        let body = body.unwrap_or(Err(SearchError::TimedOut(self.deadline)))?;
        match &self.url.kind {
            Kind::Searxng => searxng::passages(&body, limit),
            Kind::Opensearch { index } => opensearch::passages(&body, index, limit),
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }
}

/// A search under way. Its verdict reaches the breaker when it is dropped, however that comes about.
struct Turn<'a> {
    remote: &'a RemoteSearch,
    verdict: Verdict,
    attempt: Attempt,
}

impl<'a> Turn<'a> {
    fn take(remote: &'a RemoteSearch) -> Option<Self> {
        let mut breaker = remote.breaker();
        if !breaker.allows(remote.now()) {
            return None;
        }
        Some(Self { remote, verdict: Verdict::Unclear, attempt: breaker.begin() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let now = self.remote.now();
        self.remote.breaker().end(self.attempt, self.verdict, now);
    }
}
