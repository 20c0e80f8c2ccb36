//! Looks up keys over one connection, and what limited callers have spent. While a statement is under way, further
//! look-ups gather, and the next statement finds the keys of all of them: the more there are, the less each costs, and the
//! server has few connections.
//!
//! A statement is sent after everybody whose key it finds has asked, so nobody is told what was true before.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chat::{KeyId, Timestamp};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::server::{Server, Session};
use super::spending::{SUM_SPENDING, sums};
use super::{key_id, signed};
use crate::keys::{FIND_KEYS, StoredKey};
use crate::limits::SpentInPeriods;
use crate::scope::Scope;
use crate::spending::BudgetPeriod;
use crate::{StoreError, sql};

/// Keys in one statement.
const MAX_KEYS: usize = 1_024;
/// In `FIND_KEYS`, behind what `StoredKey` reads.
const ID_COLUMN: usize = 8;
/// How long nobody tries again after a failed attempt to connect.
const RECONNECT_BACKOFF: Duration = Duration::from_millis(200);

pub(super) struct KeyLookup {
    /// As many wait in it as requests are being authenticated.
    queue: mpsc::UnboundedSender<Lookup>,
    timeout: Duration,
}

enum Lookup {
    Key(KeyId, Reply<Option<StoredKey>>),
    Spending(SpendingLookup),
}

struct SpendingLookup {
    scopes: Vec<Scope>,
    now: Timestamp,
    reply: Reply<HashMap<Scope, SpentInPeriods>>,
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

impl KeyLookup {
    pub(super) fn new(server: &Server) -> Self {
        let (queue, lookups) = mpsc::unbounded_channel();
        let finder = Finder { server: server.clone(), connection: None, failed_at: None };
        drop(server.spawn(finder.run(lookups))); // it ends when nobody can ask any more
        Self { queue, timeout: server.timeout() }
    }

    pub(super) async fn find_key(&self, key: KeyId) -> Result<Option<StoredKey>, StoreError> {
        self.ask(|reply| Lookup::Key(key, reply)).await
    }

    /// What scopes have spent in the current day and month.
    pub(super) async fn find_spending(
        &self,
        scopes: &[Scope],
        now: Timestamp,
    ) -> Result<HashMap<Scope, SpentInPeriods>, StoreError> {
        self.ask(|reply| Lookup::Spending(SpendingLookup { scopes: scopes.to_vec(), now, reply })).await
    }

    async fn ask<T>(&self, lookup: impl FnOnce(Reply<T>) -> Lookup) -> Result<T, StoreError> {
        let (reply, found) = oneshot::channel();
        if self.queue.send(lookup(reply)).is_err() {
            return Err(unreachable());
        }
        let found = timeout(self.timeout, found).await.map_err(|_elapsed| StoreError::TimedOut)?;
        found.unwrap_or_else(|_gone| Err(unreachable()))
    }
}

/// The task behind the queue.
struct Finder {
    server: Server,
    connection: Option<LookupConnection>,
    /// The last attempt to connect, if it failed.
    failed_at: Option<Instant>,
}

struct LookupConnection {
    session: Session,
    find_keys: Statement,
    sum_spending: Statement,
}

/// By key. One that cannot be read is its owner's error, and nobody else's.
type FoundKeys = HashMap<KeyId, Result<StoredKey, StoreError>>;

impl Finder {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Lookup>) {
        let mut lookups = Vec::new();
        while queue.recv_many(&mut lookups, MAX_KEYS).await > 0 {
            let (mut keys, mut spending) = (Vec::new(), Vec::new());
            for lookup in lookups.drain(..) {
                match lookup {
                    Lookup::Key(key, reply) if !reply.is_closed() => keys.push((key, reply)),
                    Lookup::Spending(lookup) if !lookup.reply.is_closed() => spending.push(lookup),
                    _ => {} // nobody waits any more
                }
            }
            if !keys.is_empty() {
                self.reply_with_keys(keys).await;
            }
            if !spending.is_empty() {
                self.reply_with_spending(spending).await;
            }
        }
    }

    async fn reply_with_keys(&mut self, lookups: Vec<(KeyId, Reply<Option<StoredKey>>)>) {
        let mut keys: Vec<KeyId> = lookups.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        let ids: Vec<&str> = keys.iter().map(KeyId::as_str).collect();
        let read = |row: &Row| Ok((key_id(row, ID_COLUMN)?, StoredKey::read(&sql::Row::Postgres(row))));
        let found = self.query(|open| &open.find_keys, &[&ids]).await;
        let found: Result<FoundKeys, StoreError> = found.and_then(|rows| rows.iter().map(read).collect());
        for (key, reply) in lookups {
            let _ = reply.send(match &found {
                Ok(keys) => keys.get(&key).map(|stored| stored.as_ref().copied().map_err(same_error)).transpose(),
                Err(error) => Err(same_error(error)),
            });
        }
    }

    async fn reply_with_spending(&mut self, lookups: Vec<SpendingLookup>) {
        let mut scopes: Vec<String> = lookups.iter().flat_map(|lookup| &lookup.scopes).map(Scope::to_string).collect();
        scopes.sort_unstable();
        scopes.dedup();
        // Around midnight some may have asked for the day before: the latest is what holds.
        let now = lookups.iter().map(|lookup| lookup.now).max().unwrap_or_default();
        let [day, month] = BudgetPeriod::ALL.map(|period| signed(period.start(now).as_millis()));
        let found = self.query(|open| &open.sum_spending, &[&scopes, &day, &month]).await;
        let found = found.and_then(|rows| sums(&rows));
        for SpendingLookup { scopes, reply, .. } in lookups {
            let spent = |found: &HashMap<Scope, SpentInPeriods>| {
                scopes.iter().filter_map(|scope| Some((*scope, *found.get(scope)?))).collect()
            };
            let _ = reply.send(found.as_ref().map(spent).map_err(same_error));
        }
    }

    /// A broken connection is replaced once.
    async fn query(
        &mut self,
        statement: impl Fn(&LookupConnection) -> &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let was_connected = self.connection.is_some();
        match self.query_once(&statement, parameters).await {
            Err(StoreError::Postgres(_)) if was_connected && self.connection.is_none() => {
                self.query_once(&statement, parameters).await
            }
            other => other,
        }
    }

    async fn query_once(
        &mut self,
        statement: impl Fn(&LookupConnection) -> &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let open = self.connect().await?;
        let session = &open.session;
        let rows = timeout(session.server().timeout(), session.query(statement(open), parameters)).await;
        let is_usable = rows.is_ok() && !session.is_closed();
        if !is_usable {
            self.connection = None;
        }
        Ok(rows.map_err(|_elapsed| StoreError::TimedOut)??)
    }

    async fn connect(&mut self) -> Result<&LookupConnection, StoreError> {
        let connection = match self.connection.take().filter(|connection| !connection.session.is_closed()) {
            Some(connection) => connection,
            None if self.failed_at.is_some_and(|failed| failed.elapsed() < RECONNECT_BACKOFF) => {
                return Err(unreachable());
            }
            None => {
                let opened = open(&self.server).await;
                self.failed_at = opened.is_err().then(Instant::now);
                opened?
            }
        };
        Ok(self.connection.insert(connection))
    }
}

async fn open(server: &Server) -> Result<LookupConnection, StoreError> {
    let session = server.connect().await?;
    let prepared = timeout(server.timeout(), async {
        tokio::try_join!(session.prepare(FIND_KEYS), session.prepare(SUM_SPENDING))
    });
    let (find_keys, sum_spending) = prepared.await.map_err(|_elapsed| StoreError::TimedOut)??;
    Ok(LookupConnection { session, find_keys, sum_spending })
}

/// An error for one more who waits.
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
