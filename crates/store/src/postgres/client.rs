//! Connections to the server from a pool with a limit, and PostgreSQL's side of `sql::Connection`.

use std::ops::Deref;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult, TimeoutType};
use tokio_postgres::Client;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::schema::CHANGE_LOCK;
use super::server::Server;
use super::{Parameter, Postgres};
use crate::StoreError;
use crate::sql::{Row, Value};

/// A client from the pool. It goes back when it is dropped, unless it is in the middle of a transaction: then it is
/// closed, and the server rolls back.
pub(crate) struct PooledClient {
    /// `None` only while it is being dropped.
    client: Option<Object<Manager>>,
    in_transaction: bool,
}

impl Postgres {
    pub(crate) async fn client(&self) -> Result<PooledClient, StoreError> {
        let client = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error,
            PoolError::Timeout(TimeoutType::Wait) => StoreError::Busy,
            other => StoreError::Unreachable(other.to_string()),
        })?;
        Ok(PooledClient { client: Some(client), in_transaction: false })
    }

    /// A read-only transaction in which nothing changes.
    pub(super) async fn snapshot(&self) -> Result<PooledClient, StoreError> {
        let mut client = self.client().await?;
        client.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        Ok(client)
    }
}

impl PooledClient {
    pub(crate) async fn execute(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<u64, StoreError> {
        Ok(self.execute_typed(sql, &typed(parameters)).await?)
    }

    pub(crate) async fn query<T>(
        &mut self,
        sql: &str,
        parameters: &[Value<'_>],
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.query_typed(sql, &typed(parameters)).await?;
        rows.iter().map(|row| read(&Row::Postgres(row))).collect()
    }

    /// Changes are rare. All replicas make them under one lock, so that the audit log has their order.
    pub(crate) async fn begin_change(&mut self) -> Result<(), StoreError> {
        self.begin(&format!("BEGIN; SELECT pg_advisory_xact_lock({CHANGE_LOCK})")).await
    }

    pub(crate) async fn commit(&mut self) -> Result<(), StoreError> {
        self.end("COMMIT").await
    }

    pub(crate) async fn roll_back(&mut self) -> Result<(), StoreError> {
        self.end("ROLLBACK").await
    }

    async fn begin(&mut self, sql: &str) -> Result<(), StoreError> {
        self.in_transaction = true; // before the server has heard of it: this future may be dropped at the await
        Ok(self.batch_execute(sql).await?)
    }

    async fn end(&mut self, sql: &str) -> Result<(), StoreError> {
        self.batch_execute(sql).await?;
        self.in_transaction = false;
        Ok(())
    }
}

impl Deref for PooledClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("there is a client until the drop")
    }
}

impl Drop for PooledClient {
    fn drop(&mut self) {
        if let Some(client) = self.client.take()
            && self.in_transaction
        {
            drop(Object::take(client));
        }
    }
}

pub(super) struct Manager(pub(super) Server);

impl managed::Manager for Manager {
    type Type = Client;
    type Error = StoreError;

    async fn create(&self) -> Result<Client, StoreError> {
        self.0.connect().await
    }

    async fn recycle(&self, client: &mut Client, _: &Metrics) -> RecycleResult<StoreError> {
        if client.is_closed() { Err(RecycleError::message("closed")) } else { Ok(()) }
    }
}

fn typed<'a>(parameters: &'a [Value<'_>]) -> Vec<Parameter<'a>> {
    let typed = |value: &'a Value<'_>| {
        let kind = match value {
            Value::Text(_) => Type::TEXT,
            Value::Integer(_) => Type::INT8,
            Value::Bytes(_) => Type::BYTEA,
            Value::Bool(_) => Type::BOOL,
        };
        (value as &(dyn ToSql + Sync), kind)
    };
    parameters.iter().map(typed).collect()
}

impl ToSql for Value<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Text(text) => text.to_sql(kind, out),
            Self::Integer(number) => number.to_sql(kind, out),
            Self::Bytes(bytes) => bytes.to_sql(kind, out),
            Self::Bool(flag) => flag.to_sql(kind, out),
        }
    }

    /// `typed` names the type of each parameter.
    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
