//! Looks up the key of every request. SQLite's file is read on the calling thread.
//!
//! PostgreSQL is asked over one connection. While a statement runs, further look-ups are queued, and the next statement finds
//! the keys of all of them: under load each look-up costs less, and the server has few connections.
//!
//! A statement is sent after all of its look-ups were requested, so that no result is older than its request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chat::KeyId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_postgres::Row;

use crate::StoreError;
use crate::database::postgres::server::{Server, Session};
use crate::database::sqlite::Sqlite;
use crate::database::{Backend, sql};
use crate::keys::key::{FIND_KEY, FIND_KEYS, StoredKey};

/// Keys per statement.
const MAX_KEYS: usize = 1_024;
/// The column of `FIND_KEYS` after those that `StoredKey` reads.
const ID_COLUMN: usize = 9;
/// The pause after a failed attempt to connect.
const RECONNECT_BACKOFF: Duration = Duration::from_millis(200);

/// Where keys are looked up.
pub(crate) enum KeyLookup {
    Sqlite(Arc<Sqlite>),
    Postgres(LookupQueue),
}

impl KeyLookup {
    pub(crate) fn new(backend: &Backend) -> Self {
        match backend {
            Backend::Sqlite(sqlite) => Self::Sqlite(sqlite.clone()),
            Backend::Postgres(postgres) => Self::Postgres(LookupQueue::new(postgres.server())),
        }
    }

    pub(super) async fn find(&self, id: KeyId) -> Result<Option<StoredKey>, StoreError> {
        match self {
            Self::Sqlite(sqlite) => sqlite.with(|connection| {
                let mut find = connection.prepare_cached(FIND_KEY)?;
                let mut rows = find.query([id.as_str()])?;
                rows.next()?.map(|row| StoredKey::read(&sql::Row::Sqlite(row))).transpose()
            }),
            // Boxed, because with SQLite, too, this large future would be part of every request's future.
            Self::Postgres(queue) => Box::pin(queue.find(id)).await,
        }
    }
}

pub(crate) struct LookupQueue {
    /// Bounded by the number of requests that are being authenticated.
    queue: mpsc::UnboundedSender<Lookup>,
    timeout: Duration,
}

struct Lookup {
    key: KeyId,
    reply: oneshot::Sender<Result<Option<StoredKey>, StoreError>>,
}

impl LookupQueue {
    fn new(server: &Server) -> Self {
        let (queue, lookups) = mpsc::unbounded_channel();
        let finder = Finder { server: server.clone(), session: None, failed_at: None };
        drop(server.spawn(finder.run(lookups))); // ends when the sender is dropped
        Self { queue, timeout: server.timeout() }
    }

    async fn find(&self, key: KeyId) -> Result<Option<StoredKey>, StoreError> {
        let (reply, found) = oneshot::channel();
        if self.queue.send(Lookup { key, reply }).is_err() {
            return Err(unreachable());
        }
        let found = timeout(self.timeout, found).await.map_err(|_elapsed| StoreError::TimedOut)?;
        found.unwrap_or_else(|_gone| Err(unreachable()))
    }
}

/// The task behind the queue.
struct Finder {
    server: Server,
    session: Option<Session>,
    /// The last attempt to connect, if it failed.
    failed_at: Option<Instant>,
}

/// By key. A key that cannot be read fails only its own look-ups.
type FoundKeys = HashMap<KeyId, Result<StoredKey, StoreError>>;

impl Finder {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Lookup>) {
        let mut lookups = Vec::new();
        while queue.recv_many(&mut lookups, MAX_KEYS).await > 0 {
            lookups.retain(|lookup| !lookup.reply.is_closed());
            if !lookups.is_empty() {
                self.reply(lookups.drain(..)).await;
            }
        }
    }

    async fn reply(&mut self, lookups: std::vec::Drain<'_, Lookup>) {
        let mut keys: Vec<KeyId> = lookups.as_slice().iter().map(|lookup| lookup.key).collect();
        keys.sort_unstable();
        keys.dedup();
        let ids: Vec<&str> = keys.iter().map(KeyId::as_str).collect();
        let read = |row: sql::Row<'_>| Ok((row.get(ID_COLUMN)?, StoredKey::read(&row)));
        let found = self.query(&ids).await;
        let found: Result<FoundKeys, StoreError> =
            found.and_then(|rows| rows.iter().map(sql::Row::Postgres).map(read).collect());
        for Lookup { key, reply } in lookups {
            let _ = reply.send(match &found {
                Ok(keys) => keys.get(&key).map(|stored| stored.as_ref().cloned().map_err(same_error)).transpose(),
                Err(error) => Err(same_error(error)),
            });
        }
    }

    /// Reconnects once if the connection is broken.
    async fn query(&mut self, ids: &[&str]) -> Result<Vec<Row>, StoreError> {
        let was_connected = self.session.is_some();
        match self.query_once(ids).await {
            Err(StoreError::Postgres(_)) if was_connected && self.session.is_none() => self.query_once(ids).await,
            other => other,
        }
    }

    async fn query_once(&mut self, ids: &[&str]) -> Result<Vec<Row>, StoreError> {
        let session = self.connect().await?;
        let found = async { session.query(&session.prepared(FIND_KEYS).await?, &[&ids]).await };
        let rows = timeout(session.server().timeout(), found).await;
        let is_usable = rows.is_ok() && !session.is_closed();
        if !is_usable {
            self.session = None;
        }
        Ok(rows.map_err(|_elapsed| StoreError::TimedOut)??)
    }

    async fn connect(&mut self) -> Result<&Session, StoreError> {
        let session = match self.session.take().filter(|session| !session.is_closed()) {
            Some(session) => session,
            None if self.failed_at.is_some_and(|failed| failed.elapsed() < RECONNECT_BACKOFF) => {
                return Err(unreachable());
            }
            None => {
                let open = async {
                    let session = self.server.connect_for_prepared().await?;
                    let prepared = timeout(session.server().timeout(), session.prepared(FIND_KEYS)).await;
                    prepared.map_err(|_elapsed| StoreError::TimedOut)??;
                    Ok::<_, StoreError>(session)
                };
                let opened = open.await;
                self.failed_at = opened.is_err().then(Instant::now);
                opened?
            }
        };
        Ok(self.session.insert(session))
    }
}

/// A copy of the error for each look-up of a statement.
fn same_error(error: &StoreError) -> StoreError {
    match error {
        StoreError::TimedOut => StoreError::TimedOut,
        StoreError::Corrupt(what) => StoreError::Corrupt(what),
        other => StoreError::Unreachable(other.to_string()),
    }
}

fn unreachable() -> StoreError {
    StoreError::Unreachable("there is no connection to the database".into())
}
