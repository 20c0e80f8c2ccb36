//! A pool of connections to the file, and SQLite's part of `sql::Connection`.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, ToSql, params_from_iter};

use crate::StoreError;
use crate::database::snapshot::Snapshot;
use crate::database::sql::Value;
use crate::database::sqlite::{Sqlite, connect};

pub(crate) struct Pool {
    path: PathBuf,
    connections: Mutex<Connections>,
    /// Signalled when the last one in use is closed.
    all_closed: Condvar,
}

#[derive(Default)]
struct Connections {
    /// Never used, and open as long as any connection may be. The log's index exists while any connection is open. A
    /// process that recreates it would accept pages that a failed fsync has left in the log (see `log`). `None` while the
    /// pool is suspended.
    anchor: Option<Connection>,
    idle: Vec<Connection>,
    in_use: usize,
}

impl Pool {
    /// The log that existed when `anchor` was opened must be settled.
    pub(crate) fn new(path: PathBuf, anchor: Connection) -> Self {
        let connections = Connections { anchor: Some(anchor), ..Connections::default() };
        Self { path, connections: Mutex::new(connections), all_closed: Condvar::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Closes all connections and refuses new ones until `resume`; `false` if some are still in use after `patience`.
    pub(crate) fn suspend(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut connections = self.connections.lock();
        connections.anchor = None;
        connections.idle.clear();
        while connections.in_use > 0 {
            if self.all_closed.wait_until(&mut connections, until).timed_out() {
                break;
            }
        }
        connections.in_use == 0
    }

    pub(crate) fn resume(&self, anchor: Connection) {
        self.connections.lock().anchor = Some(anchor);
    }

    /// An idle connection, or a new one if all are in use.
    fn take(&self) -> Result<PooledConnection<'_>, StoreError> {
        let idle = {
            let mut connections = self.connections.lock();
            if connections.anchor.is_none() {
                return Err(StoreError::Recovering);
            }
            connections.in_use += 1;
            connections.idle.pop()
        };
        let mut taken = PooledConnection { pool: self, connection: idle, failed: false };
        if taken.connection.is_none() {
            taken.connection = Some(connect(&self.path)?);
        }
        Ok(taken)
    }

    fn give_back(&self, connection: Option<Connection>) {
        let mut connections = self.connections.lock();
        connections.in_use -= 1;
        match connection {
            Some(connection) if connections.anchor.is_some() => connections.idle.push(connection),
            // Closed under the lock, so that it is closed when `suspend` sees that none is in use.
            closed => drop(closed),
        }
        if connections.in_use == 0 {
            self.all_closed.notify_all();
        }
    }
}

pub(crate) struct PooledConnection<'a> {
    pool: &'a Pool,
    /// `None` only while it is being opened or dropped.
    connection: Option<Connection>,
    failed: bool,
}

impl Sqlite {
    pub(crate) fn connection(&self) -> Result<PooledConnection<'_>, StoreError> {
        self.pool.take()
    }

    /// Takes the file's write lock immediately, so that the change cannot fail later because of it.
    pub(crate) fn begin_change(&self) -> Result<PooledConnection<'_>, StoreError> {
        let mut connection = self.connection()?;
        connection.run(|connection| Ok(connection.execute_batch("BEGIN IMMEDIATE")?))?;
        self.has_changes.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    /// Runs a read that may take long on a separate thread, so that the calling thread can serve other requests. At most
    /// `MAX_REPORTS` run at a time, including those whose callers have disconnected; others wait.
    pub(crate) async fn report<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl AsyncFnOnce(&mut Snapshot<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = self.reports.clone().acquire_owned().await.map_err(|_| StoreError::Busy)?;
        let sqlite = self.clone();
        let report = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            sqlite.snapshot(|snapshot| ready(read(snapshot)))
        });
        report.await.map_err(|_| StoreError::Panicked)?
    }

    /// Reads in one snapshot of the file.
    pub(crate) fn snapshot<T>(
        &self,
        read: impl FnOnce(&mut Snapshot<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with(|connection| {
            connection.execute_batch("BEGIN")?;
            let result = read(&mut Snapshot::Sqlite(connection))?;
            connection.execute_batch("COMMIT")?;
            Ok(result)
        })
    }

    pub(crate) fn with<T>(&self, run: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.connection()?.run(run)
    }
}

impl PooledConnection<'_> {
    pub(crate) fn execute(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<u64, StoreError> {
        self.run(|connection| {
            let changed = connection.prepare_cached(&numbered(sql))?.execute(params_from_iter(parameters))?;
            Ok(changed as u64)
        })
    }

    pub(crate) fn commit(&mut self) -> Result<(), StoreError> {
        self.run(|connection| Ok(connection.execute_batch("COMMIT")?))
    }

    pub(crate) fn roll_back(&mut self) -> Result<(), StoreError> {
        self.run(|connection| Ok(connection.execute_batch("ROLLBACK")?))
    }

    pub(crate) fn run<T>(
        &mut self,
        run: impl FnOnce(&mut Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let connection = self.connection.as_mut().expect("the connection exists until the drop");
        let result = run(connection);
        self.failed |= result.is_err();
        result
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        // After an error a connection may be in any state, and is closed.
        let is_clean = |connection: &Connection| !self.failed && connection.is_autocommit();
        let (kept, closed) = match self.connection.take() {
            Some(connection) if is_clean(&connection) => (Some(connection), None),
            other => (None, other),
        };
        drop(closed);
        self.pool.give_back(kept);
    }
}

/// Runs a future that reads a SQLite file, and so never waits.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("SQLite is read on the calling thread"),
    }
}

/// A statement with SQLite's `?1` instead of `$1`, which SQLite would number by first appearance.
pub(crate) fn numbered(sql: &str) -> String {
    sql.replace('$', "?")
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Text(text) => text.to_sql(),
            Self::Integer(number) => number.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
            Self::Request(id) => Ok(id.to_bytes().to_vec().into()),
            Self::Bool(flag) => flag.to_sql(),
        }
    }
}
