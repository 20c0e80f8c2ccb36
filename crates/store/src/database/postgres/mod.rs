//! The PostgreSQL backend: one server, and any number of replicas of this program. No replica holds state that another
//! needs.
//!
//! Key look-ups, the ledger, folding and limits have one connection each. All other code takes connections from a pool. A
//! broken connection is replaced at the next use.

mod client;
pub(crate) mod ddl;
pub(crate) mod migrate;
pub(crate) mod server;
mod tls;
mod url;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::{Pool, Timeouts};
use tokio::sync::Semaphore;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient};

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::database::sql;

use client::Manager;
pub(crate) use client::{PooledClient, typed};
use server::Server;
pub use url::{PostgresUrl, PostgresUrlError};

#[derive(Debug, Clone)]
pub struct PostgresSettings {
    pub url: PostgresUrl,
    /// Size of the pool. The connections for key look-ups, the ledger, folding and limits are additional.
    pub connections: usize,
    /// Limit of a statement, and of the wait for a connection.
    pub timeout: Duration,
}

pub(crate) struct Postgres {
    server: Server,
    pool: Pool<Manager>,
    /// One permit: changes are made one after the other.
    changes: Arc<Semaphore>,
    /// Permits for reports, which use at most half of the pool.
    reports: Semaphore,
}

impl Postgres {
    /// Connects, and migrates the tables.
    pub(crate) async fn open(settings: &PostgresSettings) -> Result<(Self, Arc<StoreClock>), StoreError> {
        let server = Server::new(settings)?;
        let mut session = server.connect().await?;
        require_separate_session(&server, &session).await?;
        migrate::migrate(&mut session).await?;
        let asked = Instant::now();
        let clock = Arc::new(StoreClock::server(server_micros(&*session).await?, asked, Instant::now()));
        drop(session);
        let limits = Timeouts { wait: Some(settings.timeout), create: None, recycle: None };
        let pool = Pool::builder(Manager(server.clone()))
            .max_size(settings.connections)
            .timeouts(limits)
            .runtime(deadpool::Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Unreachable(error.to_string()))?;
        let changes = Arc::new(Semaphore::new(1));
        let reports = Semaphore::new(settings.connections.div_ceil(2));
        Ok((Self { changes, reports, pool, server }, clock))
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Server settings that could lose rows.
    pub(crate) async fn faults(&self) -> Result<Vec<String>, StoreError> {
        let risky = "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'";
        let describe = |row: &sql::Row<'_>| {
            Ok(format!("the server runs with {} = off: a crash may lose rows", row.get::<String>(0)?))
        };
        sql::Connection::Postgres(self.client().await?).query(risky, &[], describe).await
    }
}

/// Fails behind a pooler that gives the server's session to other clients between two transactions: they would get this
/// client's settings, prepared statements and locks. The test: if sessions are shared, the open transaction of a second
/// client takes this one's session.
async fn require_separate_session(server: &Server, session: &Client) -> Result<(), StoreError> {
    let before = backend_pid(session).await?;
    let other = server.connect().await?;
    other.batch_execute("BEGIN").await?;
    let others = backend_pid(&other).await?;
    let after = backend_pid(session).await?;
    if others == before || after != before { Err(StoreError::SharedSessions) } else { Ok(()) }
}

/// The server's process behind a connection.
async fn backend_pid(client: &Client) -> Result<i32, StoreError> {
    Ok(client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.try_get(0)?)
}

/// The server's clock, in microseconds since 1970.
pub(crate) async fn server_micros(client: &impl GenericClient) -> Result<u64, StoreError> {
    let read = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    sql::Row::Postgres(&client.query_typed_one(read, &[]).await?).get(0)
}

/// A parameter with its type, so that a statement needs no separate round trip to prepare it.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A time or a count in the form of the database.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// An error with all its causes, which the driver's message omits.
pub(crate) fn error_chain(error: &tokio_postgres::Error) -> String {
    let mut describe = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !describe.contains(&message) {
            describe = format!("{describe}: {message}");
        }
        source = cause.source();
    }
    describe
}
