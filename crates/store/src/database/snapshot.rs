//! Reads of many rows from either database, for reports, folding and copies. All statements of a snapshot see the same
//! rows. They number their parameters like those of `sql`; where the databases need different ones, `pick` chooses.

use chat::RequestId;
use rusqlite::params_from_iter;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::StoreError;
use crate::database::postgres::typed;
use crate::database::sql::{FromColumn, Row, Value};
use crate::database::sqlite::{numbered, ready};
use crate::database::{Backend, Base};

/// A transaction that its owner begins and ends.
pub(crate) enum Snapshot<'a> {
    Sqlite(&'a mut rusqlite::Connection),
    Postgres(&'a tokio_postgres::Client),
}

impl Snapshot<'_> {
    /// The variant for this database, such as one of two statements.
    pub(crate) fn pick<V>(&self, sqlite: V, postgres: V) -> V {
        match self {
            Self::Sqlite(_) => sqlite,
            Self::Postgres(_) => postgres,
        }
    }

    pub(crate) async fn each(
        &mut self,
        sql: &str,
        parameters: &[Value<'_>],
        mut take: impl FnMut(&Row<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(&numbered(sql))?;
                let mut rows = statement.query(params_from_iter(parameters))?;
                while let Some(row) = rows.next()? {
                    take(&Row::Sqlite(row))?;
                }
                Ok(())
            }
            Self::Postgres(client) => {
                let rows = client.query_typed(sql, &typed(parameters)).await?;
                rows.iter().try_for_each(|row| take(&Row::Postgres(row)))
            }
        }
    }

    pub(crate) async fn query<T>(
        &mut self,
        sql: &str,
        parameters: &[Value<'_>],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut all = Vec::new();
        let take = |row: &Row<'_>| {
            all.push(read(row)?);
            Ok(())
        };
        self.each(sql, parameters, take).await?;
        Ok(all)
    }

    /// The first column of a statement that always returns one row.
    pub(crate) async fn value<T: FromColumn>(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<T, StoreError> {
        let rows = self.query(sql, parameters, |row| row.get(0)).await?;
        rows.into_iter().next().ok_or(StoreError::Corrupt("result"))
    }

    /// The result of a statement on `requests` for the rows with these ids, in any order.
    pub(crate) async fn requests<T>(
        &mut self,
        select: &str,
        ids: &[RequestId],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        match self {
            Self::Sqlite(connection) => {
                let mut find = connection.prepare_cached(&format!("{select} WHERE requests.id = ?1"))?;
                let mut all = Vec::with_capacity(ids.len());
                for id in ids {
                    if let Some(row) = find.query([id.to_bytes()])?.next()? {
                        all.push(read(&Row::Sqlite(row))?);
                    }
                }
                Ok(all)
            }
            Self::Postgres(client) => {
                let ids: Vec<_> = ids.iter().map(|id| Uuid::from_bytes(id.to_bytes())).collect();
                // With `= ANY`, the planner would estimate every id in every partition.
                let find = format!("{select} WHERE requests.id IN (SELECT unnest($1::uuid[]))");
                let rows = client.query_typed(&find, &[(&ids, Type::UUID_ARRAY)]).await?;
                rows.iter().map(|row| read(&Row::Postgres(row))).collect()
            }
        }
    }
}

impl Base {
    /// A read that may take long. SQLite's runs on a separate thread, and PostgreSQL's use at most half of the pool.
    pub(crate) async fn long_read<T: Send + 'static>(
        &self,
        read: impl AsyncFnOnce(&mut Snapshot<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.report(read).await,
            Backend::Postgres(postgres) => {
                postgres.report(async |client| read(&mut Snapshot::Postgres(client)).await).await
            }
        }
    }

    /// A read that is always short.
    pub(crate) async fn short_read<T>(
        &self,
        read: impl AsyncFnOnce(&mut Snapshot<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.snapshot(|snapshot| ready(read(snapshot))),
            Backend::Postgres(postgres) => {
                postgres.snapshot(async |client| read(&mut Snapshot::Postgres(client)).await).await
            }
        }
    }
}
