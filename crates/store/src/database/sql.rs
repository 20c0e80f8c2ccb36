//! One interface to both databases, so that the code for keys, accounts, sessions, links and the audit log exists once.
//!
//! Statements number their parameters `$1`, `$2` and so on. SQLite runs them synchronously on the calling thread;
//! PostgreSQL is awaited. Every change runs in `Base::change`, which takes the viewer who makes it, or in
//! `Base::change_without_viewer`, the only function that commits. Code that runs for every request (key lookup, the
//! ledger) and code that differs between the databases does not use this interface.

use std::ops::{Deref, DerefMut};

use chat::{KeyId, RequestId, Timestamp};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::StoreError;
use crate::database::postgres::PooledClient;
use crate::database::snapshot::Snapshot;
use crate::database::sqlite::{PooledConnection, ready};
use crate::database::{Backend, Base};
use crate::values::{Email, Id, Project, Role};

/// A connection from the pool of either database. After it is dropped, even midway, the pool reuses it only once it is idle
/// and in no transaction.
pub(crate) enum Connection<'a> {
    Sqlite(PooledConnection<'a>),
    Postgres(PooledClient),
}

impl Connection<'_> {
    /// Runs a statement, and returns the number of rows that it changed.
    pub(crate) async fn execute(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(connection) => connection.execute(sql, parameters),
            Self::Postgres(client) => client.execute(sql, parameters).await,
        }
    }

    pub(crate) async fn query<T>(
        &mut self,
        sql: &str,
        parameters: &[Value<'_>],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.read(1, async |snapshot| snapshot.query(sql, parameters, read).await).await
    }

    pub(crate) async fn query_optional<T>(
        &mut self,
        sql: &str,
        parameters: &[Value<'_>],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        Ok(self.query(sql, parameters, read).await?.into_iter().next())
    }

    /// The first column of a statement that always returns one row.
    pub(crate) async fn query_value<T: FromColumn>(
        &mut self,
        sql: &str,
        parameters: &[Value<'_>],
    ) -> Result<T, StoreError> {
        self.query_optional(sql, parameters, |row| row.get(0)).await?.ok_or(StoreError::Corrupt("result"))
    }

    /// Reads with up to this many statements, in the current transaction.
    pub(crate) async fn read<T>(
        &mut self,
        statements: u32,
        read: impl AsyncFnOnce(&mut Snapshot<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self {
            Self::Sqlite(connection) => connection.run(|connection| ready(read(&mut Snapshot::Sqlite(connection)))),
            Self::Postgres(client) => {
                client.run(statements, async |client| read(&mut Snapshot::Postgres(client)).await).await
            }
        }
    }
}

/// A change that has not yet been committed.
pub(crate) struct Transaction<'a> {
    connection: Connection<'a>,
    now: Timestamp,
}

impl<'a> Transaction<'a> {
    /// Holds the connection until the transaction has ended.
    async fn begin(base: &'a Base) -> Result<Self, StoreError> {
        let now = base.now();
        let connection = match &base.backend {
            Backend::Sqlite(backend) => Connection::Sqlite(backend.begin_change()?),
            Backend::Postgres(backend) => Connection::Postgres(backend.begin_change().await?),
        };
        Ok(Self { connection, now })
    }

    /// The time of the change.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    async fn commit(mut self) -> Result<(), StoreError> {
        match &mut self.connection {
            Connection::Sqlite(connection) => connection.commit(),
            Connection::Postgres(client) => client.commit().await,
        }
    }

    /// If this fails, the connection is closed, and the database rolls back.
    async fn roll_back(mut self) {
        let _ = match &mut self.connection {
            Connection::Sqlite(connection) => connection.roll_back(),
            Connection::Postgres(client) => client.roll_back().await,
        };
    }
}

impl<'a> Deref for Transaction<'a> {
    type Target = Connection<'a>;

    fn deref(&self) -> &Connection<'a> {
        &self.connection
    }
}

impl<'a> DerefMut for Transaction<'a> {
    fn deref_mut(&mut self) -> &mut Connection<'a> {
        &mut self.connection
    }
}

impl Base {
    pub(crate) async fn connection(&self) -> Result<Connection<'_>, StoreError> {
        Ok(match &self.backend {
            Backend::Sqlite(backend) => Connection::Sqlite(backend.connection()?),
            Backend::Postgres(backend) => Connection::Postgres(backend.client().await?),
        })
    }

    /// Makes a change without a viewer: a sign-in, the use of a link, or a change by the service. One transaction, which is
    /// committed if the change succeeds and rolled back if it fails or is declined. Changes are serialised, even across
    /// processes, so that each sees all earlier ones.
    pub(crate) async fn change_without_viewer<T, E: From<StoreError>>(
        &self,
        change: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut transaction = Transaction::begin(self).await?;
        let result = change(&mut transaction).await;
        match result {
            Ok(_) => transaction.commit().await?,
            Err(_) => transaction.roll_back().await,
        }
        result
    }
}

/// A statement's parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(Option<&'a str>),
    Integer(Option<i64>),
    Bytes(&'a [u8]),
    Request(RequestId),
    Bool(bool),
}

/// The parameters of a statement, `$1` first.
macro_rules! params {
    ($($value:expr),* $(,)?) => { &[$($crate::database::sql::Value::from($value)),*] };
}
pub(crate) use params;

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(text))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a KeyId> for Value<'a> {
    fn from(id: &'a KeyId) -> Self {
        id.as_str().into()
    }
}

impl<'a, Of> From<&'a Id<Of>> for Value<'a> {
    fn from(id: &'a Id<Of>) -> Self {
        id.as_str().into()
    }
}

impl<'a, Of> From<Option<&'a Id<Of>>> for Value<'a> {
    fn from(id: Option<&'a Id<Of>>) -> Self {
        Self::Text(id.map(Id::as_str))
    }
}

impl From<RequestId> for Value<'_> {
    fn from(id: RequestId) -> Self {
        Self::Request(id)
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Integer(Some(integer(number)))
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(Some(number))
    }
}

impl From<Timestamp> for Value<'_> {
    fn from(time: Timestamp) -> Self {
        time.as_millis().into()
    }
}

impl From<Option<Timestamp>> for Value<'_> {
    fn from(time: Option<Timestamp>) -> Self {
        Self::Integer(time.map(|time| integer(time.as_millis())))
    }
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl<'a> From<&'a [u8; 32]> for Value<'a> {
    fn from(digest: &'a [u8; 32]) -> Self {
        Self::Bytes(digest)
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

/// One row of a result.
pub(crate) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a tokio_postgres::Row),
}

impl Row<'_> {
    pub(crate) fn get<T: FromColumn>(&self, column: usize) -> Result<T, StoreError> {
        T::from_column(self, column)?.ok_or(StoreError::Corrupt("value"))
    }

    pub(crate) fn get_optional<T: FromColumn>(&self, column: usize) -> Result<Option<T>, StoreError> {
        T::from_column(self, column)
    }

    pub(crate) fn text(&self, column: usize) -> Result<Option<&str>, StoreError> {
        match self {
            Self::Sqlite(row) => row.get_ref(column)?.as_str_or_null().map_err(|_| StoreError::Corrupt("text")),
            Self::Postgres(row) => Ok(row.try_get(column)?),
        }
    }

    fn parse<T: std::str::FromStr>(&self, column: usize, what: &'static str) -> Result<Option<T>, StoreError> {
        self.text(column)?.map(str::parse).transpose().map_err(|_| StoreError::Corrupt(what))
    }
}

/// A type that a column can hold; `None` for NULL.
pub(crate) trait FromColumn: Sized {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError>;
}

impl FromColumn for String {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        Ok(row.text(column)?.map(str::to_owned))
    }
}

impl FromColumn for i64 {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        Ok(match row {
            Row::Sqlite(row) => row.get(column)?,
            Row::Postgres(row) => match *row.columns()[column].type_() {
                Type::INT2 => row.try_get::<_, Option<i16>>(column)?.map(Self::from),
                Type::INT4 => row.try_get::<_, Option<i32>>(column)?.map(Self::from),
                _ => row.try_get(column)?,
            },
        })
    }
}

/// Smaller numbers, none of which is negative.
macro_rules! from_number_column {
    ($($number:ty),*) => {$(
        impl FromColumn for $number {
            fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
                let number = i64::from_column(row, column)?;
                number.map(Self::try_from).transpose().map_err(|_| StoreError::Corrupt("number"))
            }
        }
    )*};
}
from_number_column!(u16, u32, u64);

impl FromColumn for f32 {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        Ok(match row {
            Row::Sqlite(row) => row.get(column)?,
            Row::Postgres(row) => row.try_get(column)?,
        })
    }
}

impl FromColumn for RequestId {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        let bytes: Option<[u8; 16]> = match row {
            Row::Sqlite(row) => row.get(column)?,
            Row::Postgres(row) => row.try_get::<_, Option<Uuid>>(column)?.map(Uuid::into_bytes),
        };
        Ok(bytes.map(Self::from_bytes))
    }
}

/// SQLite has a blob of 16 bytes for each, and PostgreSQL an array.
impl FromColumn for Vec<RequestId> {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        match row {
            Row::Sqlite(row) => match row.get_ref(column)?.as_blob().map(<[u8]>::as_chunks) {
                Ok((ids, [])) => Ok(Some(ids.iter().map(|&id| RequestId::from_bytes(id)).collect())),
                _ => Err(StoreError::Corrupt("commit")),
            },
            Row::Postgres(row) => {
                let ids: Vec<Uuid> = row.try_get(column).map_err(|_| StoreError::Corrupt("commit"))?;
                Ok(Some(ids.into_iter().map(|id| RequestId::from_bytes(id.into_bytes())).collect()))
            }
        }
    }
}

impl FromColumn for Timestamp {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        Ok(u64::from_column(row, column)?.map(Self::from_millis))
    }
}

impl FromColumn for bool {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        Ok(match row {
            Row::Sqlite(row) => row.get(column)?,
            Row::Postgres(row) => row.try_get(column)?,
        })
    }
}

impl FromColumn for [u8; 32] {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        let bytes = match row {
            Row::Sqlite(row) => row.get_ref(column)?.as_blob_or_null().map_err(|_| StoreError::Corrupt("digest"))?,
            Row::Postgres(row) => row.try_get(column)?,
        };
        bytes.map(Self::try_from).transpose().map_err(|_| StoreError::Corrupt("digest"))
    }
}

impl FromColumn for KeyId {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        row.parse(column, "key id")
    }
}

impl<Of> FromColumn for Id<Of> {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        row.parse(column, "id")
    }
}

impl FromColumn for Role {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        row.parse(column, "role")
    }
}

impl FromColumn for Project {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        Ok(row.text(column)?.map(Self::stored))
    }
}

impl FromColumn for Email {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        Ok(String::from_column(row, column)?.map(Self::stored))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Database, PostgresSettings, Store};

    /// A store on each backend, with one connection in its pool.
    async fn stores(folder: &tempfile::TempDir) -> [Store; 2] {
        let url = testbed::Cluster::shared().create_database().parse().unwrap();
        let server = PostgresSettings { url, connections: 1, timeout: Duration::from_secs(5) };
        let file = Database::Sqlite(folder.path().join("test.db"));
        [Store::open(&file).await.unwrap(), Store::open(&Database::Postgres(server)).await.unwrap()]
    }

    /// Creates a temporary table, which only this connection has.
    async fn mark(store: &Store) {
        store.base.connection().await.unwrap().execute("CREATE TEMP TABLE mark (id bigint)", &[]).await.unwrap();
    }

    async fn is_marked(store: &Store) -> bool {
        store.base.connection().await.unwrap().execute("INSERT INTO mark VALUES (1)", &[]).await.is_ok()
    }

    async fn audit_lines(store: &Store) -> u64 {
        store.base.connection().await.unwrap().query_value("SELECT count(*) FROM audit", &[]).await.unwrap()
    }

    const WRITE: &str = "INSERT INTO audit (at, who, address, action, subject_kind, subject_id, subject, details)
        VALUES (1, '', '', '', '', '', '', '')";

    #[tokio::test]
    async fn a_declined_change_is_rolled_back_and_keeps_its_connection() {
        let folder = tempfile::tempdir().unwrap();
        for store in stores(&folder).await {
            mark(&store).await;
            let declined = store.base.change_without_viewer(async |transaction| {
                transaction.execute(WRITE, &[]).await?;
                Err::<(), _>(StoreError::Busy)
            });
            assert!(matches!(declined.await, Err(StoreError::Busy)));
            assert_eq!(audit_lines(&store).await, 0);
            assert!(is_marked(&store).await);
            store.base.change_without_viewer(async |transaction| transaction.execute(WRITE, &[]).await).await.unwrap();
            assert_eq!(audit_lines(&store).await, 1);
            assert!(is_marked(&store).await);
        }
    }

    /// Callers may run on any thread.
    #[tokio::test]
    async fn reads_and_changes_can_be_spawned() {
        let folder = tempfile::tempdir().unwrap();
        for store in stores(&folder).await {
            let task = tokio::spawn(async move {
                store.links().create_setup().await?.ok_or(StoreError::Busy)?;
                store.accounts().count().await
            });
            assert_eq!(task.await.unwrap().unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn a_change_that_is_dropped_midway_is_rolled_back() {
        let folder = tempfile::tempdir().unwrap();
        for store in stores(&folder).await {
            let stuck = store.base.change_without_viewer(async |transaction| {
                transaction.execute(WRITE, &[]).await?;
                std::future::pending::<Result<(), StoreError>>().await
            });
            assert!(tokio::time::timeout(Duration::from_millis(200), stuck).await.is_err());
            assert_eq!(audit_lines(&store).await, 0);
            store.base.change_without_viewer(async |transaction| transaction.execute(WRITE, &[]).await).await.unwrap();
            assert_eq!(audit_lines(&store).await, 1);
        }
    }
}
