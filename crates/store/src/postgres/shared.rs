//! The connection over which keys are looked up: all requests share it, and their questions follow one another without
//! waiting for answers. So one connection carries a replica, and the server sees few of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::server::Server;
use crate::StoreError;
use crate::keys::FIND_KEY;

/// After a failed attempt to connect, for so long nobody tries again.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Shared {
    server: Server,
    open: Mutex<Option<Arc<Open>>>,
    /// Held by whoever connects; since when there was no connecting.
    connecting: tokio::sync::Mutex<Option<Instant>>,
}

struct Open {
    client: Client,
    find_key: Statement,
}

impl Shared {
    pub(super) fn new(server: Server) -> Self {
        Self { server, open: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// Looks up what the database holds of a key. A connection that turns out to be broken is replaced once.
    pub(super) async fn find_key(&self, id: &str) -> Result<Option<Row>, StoreError> {
        let open = self.connection().await?;
        match self.ask(&open, &[&id]).await {
            Err(StoreError::Postgres(_)) if open.client.is_closed() => {
                let open = self.connection().await?;
                self.ask(&open, &[&id]).await
            }
            other => other,
        }
    }

    async fn ask(&self, open: &Arc<Open>, parameters: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, StoreError> {
        let asked = open.client.query_opt(&open.find_key, parameters);
        match tokio::time::timeout(self.server.timeout(), asked).await {
            Ok(answered) => Ok(answered?),
            Err(_elapsed) => {
                self.give_up(open);
                Err(StoreError::TimedOut)
            }
        }
    }

    /// The connection, made if there is none that works. Those who wait while somebody tries in vain do not try again.
    async fn connection(&self) -> Result<Arc<Open>, StoreError> {
        if let Some(open) = self.current() {
            return Ok(open);
        }
        let came = Instant::now();
        let mut failed_at = self.connecting.lock().await;
        if let Some(open) = self.current() {
            return Ok(open);
        }
        if failed_at.is_some_and(|failed| failed > came || failed.elapsed() < PAUSE) {
            return Err(StoreError::Unreachable("there is no connection to the database".into()));
        }
        match self.connect().await {
            Ok(open) => {
                *failed_at = None;
                *self.slot() = Some(open.clone());
                Ok(open)
            }
            Err(error) => {
                *failed_at = Some(Instant::now());
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Arc<Open>, StoreError> {
        let client = self.server.connect().await?;
        let prepared = tokio::time::timeout(self.server.timeout(), client.prepare(FIND_KEY)).await;
        let find_key = prepared.map_err(|_elapsed| StoreError::TimedOut)??;
        Ok(Arc::new(Open { client, find_key }))
    }

    fn current(&self) -> Option<Arc<Open>> {
        self.slot().as_ref().filter(|open| !open.client.is_closed()).cloned()
    }

    /// Leaves a connection that does not answer to those who still wait on it.
    fn give_up(&self, silent: &Arc<Open>) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|open| Arc::ptr_eq(open, silent)) {
            *slot = None;
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
