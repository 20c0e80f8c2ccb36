//! Search in the built-in index: opened once it exists, searched on a blocking thread, under a deadline.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::index::{EmbeddingsServer, Hit, Index, IndexError, IndexId, QuestionVector, SentenceEncoder};
use crate::search::SearchError;

/// How often to look whether there is an index now. Every request asks, and there may be thousands a second; but
/// somebody who has just made an index expects it to be used.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What makes vectors.
#[derive(Clone, Default)]
pub struct Embedders {
    /// Once it is loaded. Tells questions from tasks, and makes the vectors of passages unless a server does.
    pub sentences: Arc<OnceLock<Arc<SentenceEncoder>>>,
    pub server: Option<Arc<EmbeddingsServer>>,
}

/// The index may be created while the service runs.
pub struct LocalSearch {
    folder: PathBuf,
    /// The index that must be there. Without it, searching fails.
    expected: watch::Receiver<Option<IndexId>>,
    deadline: Duration,
    embedders: Embedders,
    index: OnceLock<Arc<Index>>,
    started: Instant,
    /// When to look again, in milliseconds from `started`.
    next_look: AtomicU64,
}

impl LocalSearch {
    pub fn new(folder: PathBuf, expected: watch::Receiver<Option<IndexId>>, deadline: Duration) -> Self {
        Self {
            folder,
            expected,
            deadline,
            embedders: Embedders::default(),
            index: OnceLock::new(),
            started: Instant::now(),
            next_look: AtomicU64::new(0),
        }
    }

    /// By which passages are found by what they mean, too.
    pub fn with_embedders(self, embedders: Embedders) -> Self {
        Self { embedders, ..self }
    }

    /// Whether anything is indexed. An index that is gone or cannot be read counts: it is an outage, not an absence.
    pub fn has_documents(&self) -> bool {
        match self.index() {
            Ok(Some(index)) => !index.is_empty().unwrap_or(false),
            Ok(None) => false,
            Err(_outage) => true,
        }
    }

    /// Why a search would fail. There may be no index, unless one is expected.
    pub fn check(&self) -> Result<(), IndexError> {
        self.index().map(drop)
    }

    /// Whether it can be told which requests documents help with.
    pub(crate) fn has_encoder(&self) -> bool {
        self.embedders.sentences.get().is_some()
    }

    /// Best first, and the vector of the turn that asks, if there are vectors. Nothing indexed is no error.
    pub(crate) async fn search_for(
        &self,
        query: &str,
        turn: &str,
        limit: usize,
    ) -> Result<(Vec<Hit>, Option<Vec<f32>>), SearchError> {
        let Some(index) = self.index().map_err(unreadable)? else { return Ok((Vec::new(), None)) };
        let (query, turn, encoder) = (query.to_owned(), turn.to_owned(), self.embedders.sentences.get().cloned());
        let served = self.served_vector(&query).await;
        let has_server = self.embedders.server.is_some();
        // A search takes milliseconds, which would hold up the other requests of this thread.
        let searched = tokio::task::spawn_blocking(move || {
            let own = encoder.as_ref().filter(|_| !has_server).map(|encoder| encoder.question(&query));
            let hits = index.search(&query, served.or(own).as_ref(), limit)?;
            Ok((hits, encoder.map(|encoder| encoder.vector(&turn))))
        });
        match tokio::time::timeout(self.deadline, searched).await {
            Ok(Ok(found)) => found.map_err(unreadable),
            Ok(Err(_panicked)) => Err(SearchError::Index("searching it failed".into())),
            Err(_elapsed) => Err(SearchError::TimedOut(self.deadline)),
        }
    }

    /// By the embeddings server. While it fails, documents are found by their words alone.
    async fn served_vector(&self, query: &str) -> Option<QuestionVector> {
        let server = self.embedders.server.as_ref().filter(|server| server.is_there())?;
        server.question(query).await.ok()
    }

    /// The index, if it is the expected one; `None` if there is none and none is expected.
    fn index(&self) -> Result<Option<Arc<Index>>, IndexError> {
        let index = self.open()?;
        let id = match index.as_ref().map(|index| index.id()).transpose() {
            Err(IndexError::Gone) => None,
            id => id?,
        };
        match (&*self.expected.borrow(), id) {
            (Some(_), None) => Err(IndexError::Gone),
            (Some(expected), Some(id)) if *expected != id => Err(IndexError::Replaced),
            (None, None) => Ok(None),
            (_, Some(_)) => Ok(index),
        }
    }

    fn open(&self) -> Result<Option<Arc<Index>>, IndexError> {
        if let Some(index) = self.index.get() {
            return Ok(Some(index.clone()));
        }
        let now = self.started.elapsed();
        if (now.as_millis() as u64) < self.next_look.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let found = Index::open(&self.folder)?;
        if found.is_none() {
            self.next_look.store((now + LOOK_INTERVAL).as_millis() as u64, Ordering::Relaxed);
        }
        Ok(found.map(|index| self.index.get_or_init(|| Arc::new(index)).clone()))
    }
}

fn unreadable(error: IndexError) -> SearchError {
    SearchError::Index(error.to_string())
}
