//! Search in the built-in index: opened once it exists, searched on a blocking thread, with a deadline.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::index::{EmbeddingsServer, Hit, Index, IndexError, IndexId, QuestionVector, SentenceEncoder};
use crate::search::SearchError;

/// How often the existence of an index is checked. Every request needs to know, perhaps thousands per second; but a new
/// index should be used immediately.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Sources of vectors.
#[derive(Clone, Default)]
pub struct Embedders {
    /// Set once it is loaded. Distinguishes questions from tasks, and embeds passages unless there is a server.
    pub sentences: Arc<OnceLock<Arc<SentenceEncoder>>>,
    pub server: Option<Arc<EmbeddingsServer>>,
}

/// The index may be created while the service runs.
pub struct LocalSearch {
    folder: PathBuf,
    /// The required index. Without it, searches fail.
    expected: watch::Receiver<Option<IndexId>>,
    deadline: Duration,
    embedders: Embedders,
    index: OnceLock<Arc<Index>>,
    started: Instant,
    /// The time of the next check, in milliseconds from `started`.
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

    /// Sets embedders, so that passages are also found by meaning.
    pub fn with_embedders(self, embedders: Embedders) -> Self {
        Self { embedders, ..self }
    }

    /// Whether anything is indexed. A missing or unreadable index counts: it is an outage.
    pub fn has_documents(&self) -> bool {
        match self.index() {
            Ok(Some(index)) => !index.is_empty().unwrap_or(false),
            Ok(None) => false,
            Err(_outage) => true,
        }
    }

    /// Why a search would fail. A missing index is an error only if one is expected.
    pub fn check(&self) -> Result<(), IndexError> {
        self.index().map(drop)
    }

    /// Whether there is an encoder, which decides if documents help with a request.
    pub(crate) fn has_encoder(&self) -> bool {
        self.embedders.sentences.get().is_some()
    }

    /// The hits, best first, and the vector of the last turn if there is an encoder. No index is not an error.
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
        // A search takes milliseconds, which would delay the other requests of this thread.
        let searched = tokio::task::spawn_blocking(move || {
            let (own, turn) = match encoder {
                Some(encoder) if has_server => (None, Some(encoder.vector(&turn))),
                Some(encoder) => {
                    let (question, turn) = encoder.question_and_turn(&query, &turn);
                    (Some(question), Some(turn))
                }
                None => (None, None),
            };
            Ok((index.search(&query, served.or(own).as_ref(), limit)?, turn))
        });
        match tokio::time::timeout(self.deadline, searched).await {
            Ok(Ok(found)) => found.map_err(unreadable),
            Ok(Err(_panicked)) => Err(SearchError::Index("searching it failed".into())),
            Err(_elapsed) => Err(SearchError::TimedOut(self.deadline)),
        }
    }

    /// The question's vector from the embeddings server. While the server fails, documents are found by words alone.
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
