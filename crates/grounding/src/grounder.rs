//! Grounding put together: score, ask Search, weave.

use std::sync::OnceLock;
use std::time::SystemTime;

use chat::{ChatRequest, Message};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use reqwest::header::HeaderMap;

use crate::Passage;
use crate::augment::{self, Augmentation};
use crate::local::LocalSearch;
use crate::query;
use crate::scorer::{self, Scorer};
use crate::search::{RemoteSearch, SearchError};

/// Results that Search is asked for; some will be repetitions, or not fit.
const RESULTS: usize = 10;

/// Which requests are grounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Those that the scorer says need facts.
    Auto,
    /// All of them.
    Always,
}

/// Who is asked for facts.
pub enum Search {
    /// The built-in index, if anything is in it: without that, nothing is grounded.
    IfIndexed(LocalSearch),
    /// The built-in index, come what may.
    Local(LocalSearch),
    /// Another server.
    Remote(Box<RemoteSearch>),
}

/// What was found out about a request before anything is searched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assessment {
    /// From 0 to 1.
    pub score: f32,
    /// The scorer's version.
    pub scorer: u16,
    /// Whether it is grounded: by its score, or because everything is.
    pub is_grounded: bool,
}

/// Grounds requests.
pub struct Grounder {
    mode: Mode,
    search: Search,
    /// Tokens that sources may take in a prompt.
    tokens: usize,
    /// Read when it is first needed: where nothing is searched, nothing is scored.
    scorer: OnceLock<Scorer>,
}

impl Grounder {
    /// Puts grounding together.
    pub fn new(mode: Mode, search: Search, tokens: usize) -> Self {
        let grounder = Self { mode, search, tokens, scorer: OnceLock::new() };
        if grounder.is_configured() {
            grounder.scorer();
        }
        grounder
    }

    /// Whether a conversation needs facts; none if there is nothing to search.
    pub fn assess(&self, messages: &[Message]) -> Option<Assessment> {
        if !self.is_configured() {
            return None;
        }
        let score = self.scorer().score(messages);
        let is_grounded = self.mode == Mode::Always || score.is_required();
        Some(Assessment { score: score.get(), scorer: scorer::VERSION, is_grounded })
    }

    /// What Search finds for a conversation. Where nothing is left to be searched for, nothing is found.
    /// `trace` holds headers with the trace context, which a search server is sent.
    pub async fn search(&self, messages: &[Message], trace: &HeaderMap) -> Result<Vec<Passage>, SearchError> {
        let Some(query) = query::derive(messages) else { return Ok(Vec::new()) };
        match &self.search {
            Search::IfIndexed(local) | Search::Local(local) => local.search(&query, RESULTS).await,
            Search::Remote(remote) => remote.search_traced(trace, &query, RESULTS).await,
        }
    }

    /// Weaves passages into instructions of at most about so many tokens.
    pub fn augment(passages: &[Passage], tokens: usize) -> Augmentation {
        let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
        augment::augment(passages, now.to_zoned(TimeZone::UTC).date(), tokens)
    }

    /// Tokens that sources may take: what was configured, or what conversation and completion leave of the context.
    pub fn source_budget(&self, request: &ChatRequest, context: Option<usize>) -> usize {
        augment::source_budget(request, context).min(self.tokens)
    }

    /// Whether there is anything to search.
    pub fn is_configured(&self) -> bool {
        match &self.search {
            Search::IfIndexed(local) => local.has_documents(),
            Search::Local(_) | Search::Remote(_) => true,
        }
    }

    /// Whether Search has answered properly of late.
    pub fn is_healthy(&self) -> bool {
        match &self.search {
            Search::IfIndexed(local) | Search::Local(local) => local.is_readable(),
            Search::Remote(remote) => remote.is_healthy(),
        }
    }

    /// Whether nothing at all is answered without Search.
    pub fn is_required(&self) -> bool {
        self.mode == Mode::Always
    }

    /// Finds out whether Search answers again, by asking it. The built-in index is looked at every time anyway.
    pub async fn probe(&self) -> Result<(), SearchError> {
        match &self.search {
            Search::IfIndexed(_) | Search::Local(_) => Ok(()),
            Search::Remote(remote) => remote.probe().await,
        }
    }

    /// Who is asked, for people: a URL without secrets, or `local`.
    pub fn search_location(&self) -> String {
        match &self.search {
            Search::IfIndexed(_) | Search::Local(_) => "local".into(),
            Search::Remote(remote) => remote.url().to_string(),
        }
    }

    fn scorer(&self) -> &Scorer {
        self.scorer.get_or_init(Scorer::new)
    }
}
