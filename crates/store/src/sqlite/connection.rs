//! Connections to the file, kept open between uses, and SQLite's side of `sql::Connection`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, ToSql, params_from_iter};

use super::{Sqlite, connect, settle_unless_in_use};
use crate::StoreError;
use crate::sql::{Row, Value};

pub(crate) struct PooledConnection<'a> {
    sqlite: &'a Sqlite,
    /// `None` only while it is being dropped.
    connection: Option<Connection>,
    failed: bool,
}

impl Sqlite {
    /// An idle connection, or a new one if all are in use.
    pub(crate) fn connection(&self) -> Result<PooledConnection<'_>, StoreError> {
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path)?,
        };
        Ok(PooledConnection { sqlite: self, connection: Some(connection), failed: false })
    }

    /// Takes the file's write lock at once, so that the change cannot fail later for want of it.
    pub(crate) fn begin_change(&self) -> Result<PooledConnection<'_>, StoreError> {
        let mut connection = self.connection()?;
        connection.run(|connection| {
            if !self.is_settled.load(Ordering::Relaxed) {
                settle_unless_in_use(connection)?;
                self.is_settled.store(true, Ordering::Relaxed);
            }
            Ok(connection.execute_batch("BEGIN IMMEDIATE")?)
        })?;
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

    fn run<T>(&mut self, run: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let connection = self.connection.as_mut().expect("there is a connection until the drop");
        let result = run(connection);
        self.failed |= result.is_err();
        result
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        // After an error a connection may be in any state: it is closed instead of kept.
        if let Some(connection) = self.connection.take()
            && !self.failed
            && connection.is_autocommit()
        {
            self.sqlite.idle.lock().push(connection);
        }
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
