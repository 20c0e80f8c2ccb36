//! Connections to the file, kept open between uses, and SQLite's side of `sql::Connection`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, ToSql, params_from_iter};

use super::{Sqlite, connect};
use crate::StoreError;
use crate::sql::{Row, Value};

pub(super) struct Pool {
    path: PathBuf,
    connections: Mutex<Connections>,
    /// Signalled when the last one in use is closed.
    all_closed: Condvar,
}

#[derive(Default)]
struct Connections {
    /// Never used, and open for as long as any connection may be. The log's index lives while anybody has the file open;
    /// whoever opened it anew would take back in what a failed fsync has left in the log (see `log`). `None` while nobody
    /// gets a connection.
    anchor: Option<Connection>,
    idle: Vec<Connection>,
    in_use: usize,
}

impl Pool {
    /// The log that was there when `anchor` was opened is settled.
    pub(super) fn new(path: PathBuf, anchor: Connection) -> Self {
        let connections = Connections { anchor: Some(anchor), ..Connections::default() };
        Self { path, connections: Mutex::new(connections), all_closed: Condvar::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Closes all connections and gives out no more until `resume`; `false` if some are still in use after a while.
    pub(super) fn suspend(&self, patience: Duration) -> bool {
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

    pub(super) fn resume(&self, anchor: Connection) {
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
            // Closed under the lock: to whoever waits for it, it must be closed.
            closed => drop(closed),
        }
        if connections.in_use == 0 {
            self.all_closed.notify_all();
        }
    }
}

pub(crate) struct PooledConnection<'a> {
    pool: &'a Pool,
    /// `None` only while it is being made or dropped.
    connection: Option<Connection>,
    failed: bool,
}

impl Sqlite {
    pub(crate) fn connection(&self) -> Result<PooledConnection<'_>, StoreError> {
        self.pool.take()
    }

    /// Takes the file's write lock at once, so that the change cannot fail later for want of it.
    pub(crate) fn begin_change(&self) -> Result<PooledConnection<'_>, StoreError> {
        let mut connection = self.connection()?;
        connection.run(|connection| Ok(connection.execute_batch("BEGIN IMMEDIATE")?))?;
        self.has_changes.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    /// Runs a read that may take long, on a thread of its own: the calling thread serves others meanwhile. So many at a
    /// time, even if nobody waits for their results any more; others wait for their turn.
    pub(crate) async fn report<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = self.reports.clone().acquire_owned().await.map_err(|_| StoreError::Busy)?;
        let sqlite = self.clone();
        let report = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read(&sqlite)
        });
        report.await.map_err(|_| StoreError::Panicked)?
    }

    pub(super) fn with<T>(&self, run: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
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

    pub(crate) fn query<T>(
        &mut self,
        sql: &str,
        parameters: &[Value<'_>],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.run(|connection| {
            let mut statement = connection.prepare_cached(&numbered(sql))?;
            let mut rows = statement.query(params_from_iter(parameters))?;
            let mut all = Vec::new();
            while let Some(row) = rows.next()? {
                all.push(read(&Row::Sqlite(row))?);
            }
            Ok(all)
        })
    }

    pub(crate) fn commit(&mut self) -> Result<(), StoreError> {
        self.run(|connection| Ok(connection.execute_batch("COMMIT")?))
    }

    pub(crate) fn roll_back(&mut self) -> Result<(), StoreError> {
        self.run(|connection| Ok(connection.execute_batch("ROLLBACK")?))
    }

    pub(super) fn run<T>(
        &mut self,
        run: impl FnOnce(&mut Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let connection = self.connection.as_mut().expect("there is a connection until the drop");
        let result = run(connection);
        self.failed |= result.is_err();
        result
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        // After an error a connection may be in any state: it is closed instead of kept.
        let is_clean = |connection: &Connection| !self.failed && connection.is_autocommit();
        let (kept, closed) = match self.connection.take() {
            Some(connection) if is_clean(&connection) => (Some(connection), None),
            other => (None, other),
        };
        drop(closed);
        self.pool.give_back(kept);
    }
}

/// A statement with SQLite's `?1` instead of `$1`, which SQLite would number by first appearance.
pub(super) fn numbered(sql: &str) -> String {
    sql.replace('$', "?")
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Text(text) => text.to_sql(),
            Self::Integer(number) => number.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
            Self::Bool(flag) => flag.to_sql(),
        }
    }
}
