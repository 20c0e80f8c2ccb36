//! Looks up keys over one connection that all requests of a replica share. Queries are pipelined, so one connection is
//! enough, and the server has few of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::server::{Server, Session};
use crate::StoreError;
use crate::keys::FIND_KEY;

/// How long nobody tries again after a failed attempt to connect.
const RECONNECT_BACKOFF: Duration = Duration::from_millis(200);

pub(super) struct KeyLookup {
    server: Server,
    connection: Mutex<Option<Arc<LookupConnection>>>,
    /// Held while somebody connects; the time of the last failure.
    connecting: tokio::sync::Mutex<Option<Instant>>,
}

struct LookupConnection {
    client: Session,
    find_key: Statement,
}

impl KeyLookup {
    pub(super) fn new(server: Server) -> Self {
        Self { server, connection: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// Looks up a key. A broken connection is replaced once.
    pub(super) async fn find_key(&self, id: &str) -> Result<Option<Row>, StoreError> {
        let connection = self.connection().await?;
        match self.query(&connection, &[&id]).await {
            Err(StoreError::Postgres(_)) if connection.client.is_closed() => {
                let connection = self.connection().await?;
                self.query(&connection, &[&id]).await
            }
            other => other,
        }
    }

    async fn query(
        &self,
        connection: &Arc<LookupConnection>,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, StoreError> {
        let query = connection.client.query_opt(&connection.find_key, parameters);
        match tokio::time::timeout(self.server.timeout(), query).await {
            Ok(result) => Ok(result?),
            Err(_elapsed) => {
                self.discard(connection);
                Err(StoreError::TimedOut)
            }
        }
    }

    /// Connects if there is no open connection. Those who waited for an attempt that failed do not try again.
    async fn connection(&self) -> Result<Arc<LookupConnection>, StoreError> {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let asked_at = Instant::now();
        let mut failed_at = self.connecting.lock().await;
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        if failed_at.is_some_and(|failed| failed > asked_at || failed.elapsed() < RECONNECT_BACKOFF) {
            return Err(StoreError::Unreachable("there is no connection to the database".into()));
        }
        match self.connect().await {
            Ok(connection) => {
                *failed_at = None;
                *self.slot() = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                *failed_at = Some(Instant::now());
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Arc<LookupConnection>, StoreError> {
        let client = self.server.connect().await?;
        let prepared = tokio::time::timeout(self.server.timeout(), client.prepare(FIND_KEY)).await;
        let find_key = prepared.map_err(|_elapsed| StoreError::TimedOut)??;
        Ok(Arc::new(LookupConnection { client, find_key }))
    }

    fn open_connection(&self) -> Option<Arc<LookupConnection>> {
        self.slot().as_ref().filter(|connection| !connection.client.is_closed()).cloned()
    }

    /// Drops a connection that does not respond. Those who still wait on it keep it.
    fn discard(&self, silent: &Arc<LookupConnection>) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, silent)) {
            *slot = None;
        }
    }

    fn slot(&self) -> parking_lot::MutexGuard<'_, Option<Arc<LookupConnection>>> {
        self.connection.lock()
    }
}
