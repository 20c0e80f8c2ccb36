//! The steps of grounding: score, search, augment.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use chat::{ChatRequest, Message};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use reqwest::header::HeaderMap;

use crate::Passage;
use crate::augment::{self, Augmentation};
use crate::helpful::{Evidence, QuestionClassifier, last_turn};
use crate::index::{EmbeddingsServer, IndexError};
use crate::local::LocalSearch;
use crate::query;
use crate::scorer::{self, Score, Scorer};
use crate::search::{RemoteSearch, SearchError};

/// More than fit into a prompt, because some will be duplicates.
const MAX_RESULTS: usize = 10;

/// Which requests are grounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Requests that need facts by their score, and requests with which the indexed documents help.
    Auto,
    Always,
}

impl Mode {
    /// Whether the hits of the built-in index go into the prompt. They must help, even if the score requires facts: in
    /// `data/retrieval`, nearly all such requests that they do not help are tasks that the scorer takes for questions.
    /// Without vectors there is no evidence, and the score decides.
    pub fn uses_hits(self, score: Score, evidence: Option<Evidence>) -> bool {
        match (self, evidence) {
            (Self::Always, _) => true,
            (Self::Auto, Some(evidence)) => evidence.is_helpful(),
            (Self::Auto, None) => score.is_required(),
        }
    }
}

pub enum Search {
    /// The built-in index. While it is empty, nothing is grounded.
    IfIndexed(LocalSearch),
    /// The built-in index, even while it is empty.
    Local(LocalSearch),
    Remote {
        search: Box<RemoteSearch>,
        /// For the vectors of an index of OpenSearch.
        embeddings: Option<Arc<EmbeddingsServer>>,
    },
}

/// Whether a request needs facts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assessment {
    pub score: Score,
    /// The scorer's version.
    pub scorer: u16,
    pub need: Need,
}

/// How much a request needs sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// There is no search.
    None,
    /// The built-in index is searched, and the hits decide.
    Optional,
    /// By its score, or because all requests are grounded. Without Search, the request fails.
    Required,
}

/// Why requests that need facts fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchOutage {
    /// The search server does not respond.
    NoAnswer,
    /// There was an index.
    IndexGone,
    /// The index is not the same as before.
    IndexReplaced,
    /// The index is damaged, or not accessible.
    IndexUnreadable,
}

pub struct Grounder {
    mode: Mode,
    search: Search,
    /// The maximum of tokens for sources in a prompt.
    max_source_tokens: usize,
    /// Loaded only if there is something to search.
    scorer: OnceLock<Scorer>,
    classifier: OnceLock<QuestionClassifier>,
}

impl Grounder {
    pub fn new(mode: Mode, search: Search, max_source_tokens: usize) -> Self {
        let grounder = Self { mode, search, max_source_tokens, scorer: OnceLock::new(), classifier: OnceLock::new() };
        if grounder.is_configured() {
            grounder.scorer();
        }
        grounder
    }

    /// `None` if there is nothing to search.
    pub fn assess(&self, messages: &[Message]) -> Option<Assessment> {
        if !self.is_configured() {
            return None;
        }
        let score = self.scorer().score(messages);
        let need = match &self.search {
            _ if self.mode == Mode::Always || score.is_required() => Need::Required,
            Search::IfIndexed(local) | Search::Local(local) if local.has_encoder() => Need::Optional,
            _ => Need::None,
        };
        Some(Assessment { score, scorer: scorer::VERSION, need })
    }

    /// Searches for a conversation. An empty query has no results. `trace` holds the headers of the trace context, which are
    /// sent to a remote server.
    pub async fn search(
        &self,
        messages: &[Message],
        assessment: Assessment,
        trace: &HeaderMap,
    ) -> Result<Vec<Passage>, SearchError> {
        match &self.search {
            Search::IfIndexed(local) | Search::Local(local) => self.search_index(local, messages, assessment).await,
            Search::Remote { search, embeddings } => {
                let Some(query) = query::derive(messages) else { return Ok(Vec::new()) };
                let vector = embeddings.as_ref().map(|server| server.raw_question(&query));
                search.search_traced(trace, &query, vector, MAX_RESULTS).await
            }
        }
    }

    async fn search_index(
        &self,
        local: &LocalSearch,
        messages: &[Message],
        assessment: Assessment,
    ) -> Result<Vec<Passage>, SearchError> {
        let query = if local.has_encoder() { query::derive_for_index(messages) } else { query::derive(messages) };
        let Some(query) = query else { return Ok(Vec::new()) };
        let (hits, turn) = local.search_for(&query, last_turn(messages), MAX_RESULTS).await?;
        let classifier = self.classifier.get_or_init(QuestionClassifier::new);
        let evidence = turn.and_then(|turn| Evidence::new(assessment.score, &turn, classifier, messages, &hits));
        if !self.mode.uses_hits(assessment.score, evidence) {
            return Ok(Vec::new());
        }
        Ok(hits.into_iter().map(|hit| hit.passage).collect())
    }

    /// `tokens` is an approximate bound of the sources.
    pub fn augment(passages: &[Passage], tokens: usize) -> Augmentation {
        let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
        augment::augment(passages, now.to_zoned(TimeZone::UTC).date(), tokens)
    }

    /// Tokens for sources: as configured, or less if conversation and completion leave less of the context.
    pub fn source_budget(&self, request: &ChatRequest, context: Option<usize>) -> usize {
        augment::source_budget(request, context).min(self.max_source_tokens)
    }

    /// The maximum of bytes that an augmentation adds to a prompt.
    pub fn max_added_bytes(&self) -> usize {
        augment::max_bytes(self.max_source_tokens)
    }

    pub fn is_configured(&self) -> bool {
        match &self.search {
            Search::IfIndexed(local) => local.has_documents(),
            Search::Local(_) | Search::Remote { .. } => true,
        }
    }

    /// Whether the built-in index can be searched, if it is used.
    pub fn check_index(&self) -> Result<(), IndexError> {
        match &self.search {
            Search::IfIndexed(local) | Search::Local(local) => local.check(),
            Search::Remote { .. } => Ok(()),
        }
    }

    /// Why searches fail: a fault of the index, or recent failures of the search server.
    pub fn outage(&self) -> Option<SearchOutage> {
        match &self.search {
            Search::Remote { search, .. } => (!search.is_healthy()).then_some(SearchOutage::NoAnswer),
            Search::IfIndexed(_) | Search::Local(_) => self.check_index().err().map(|error| match error {
                IndexError::Gone => SearchOutage::IndexGone,
                IndexError::Replaced => SearchOutage::IndexReplaced,
                _ => SearchOutage::IndexUnreadable,
            }),
        }
    }

    /// Whether every request needs Search.
    pub fn is_required(&self) -> bool {
        self.mode == Mode::Always
    }

    /// Sends one search, so that a server that has recovered is used again. The built-in index needs no probe.
    pub async fn probe(&self) -> Result<(), SearchError> {
        match &self.search {
            Search::IfIndexed(_) | Search::Local(_) => Ok(()),
            Search::Remote { search, .. } => search.probe().await,
        }
    }

    /// The location for people: a URL without secrets, or `local`.
    pub fn search_location(&self) -> String {
        match &self.search {
            Search::IfIndexed(_) | Search::Local(_) => "local".into(),
            Search::Remote { search, .. } => search.url().to_string(),
        }
    }

    fn scorer(&self) -> &Scorer {
        self.scorer.get_or_init(Scorer::new)
    }
}
