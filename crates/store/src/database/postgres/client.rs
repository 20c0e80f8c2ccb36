//! A pool of connections to the server, and PostgreSQL's part of `sql::Connection`.
//!
//! Callers may disconnect at any time, which drops their futures at any await. A client's state is therefore recorded
//! before a statement is sent. A client that is dropped while it is busy keeps its place in the pool until its statement
//! has ended: it is rolled back, or else cancelled and closed.

use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult, TimeoutType};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::Client;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use crate::StoreError;
use crate::database::postgres::migrate::CHANGE_LOCK;
use crate::database::postgres::server::{ABANDONED_TIMEOUT, Server, Session};
use crate::database::postgres::{Parameter, Postgres};
use crate::database::sql::Value;

/// How much longer than the server's statement timeout a response may take.
const RESPONSE_MARGIN: Duration = Duration::from_secs(1);

/// A snapshot may take as long as this many statements.
const SNAPSHOT_TIMEOUTS: u32 = 8;

/// A client from the pool.
pub(crate) struct PooledClient {
    /// `None` only while it is being dropped.
    session: Option<Object<Manager>>,
    state: ClientState,
    /// The permit of `Postgres::changes`, held by a client that makes a change.
    turn: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    /// Ready for the next caller.
    Idle,
    /// A statement outside of a transaction runs, or has failed.
    Statement,
    /// A transaction may be open.
    Transaction,
    /// A commit runs.
    Commit,
}

impl Postgres {
    pub(crate) async fn client(&self) -> Result<PooledClient, StoreError> {
        let session = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error,
            PoolError::Timeout(TimeoutType::Wait) => StoreError::Busy,
            other => StoreError::Unreachable(other.to_string()),
        })?;
        Ok(PooledClient { session: Some(session), state: ClientState::Idle, turn: None })
    }

    /// Begins a transaction for a change. Changes are rare, and all replicas make them under one lock, so that the audit
    /// log has their order. Each writes a message to the server's log, even if it changes no row: a commit that writes
    /// nothing does not wait for a synchronous standby, which an earlier attempt may not have reached. Only one change of
    /// a replica waits for the lock. The others wait here without a connection, so that reads are not blocked.
    pub(crate) async fn begin_change(&self) -> Result<PooledClient, StoreError> {
        let turn = tokio::time::timeout(self.server.timeout(), self.changes.clone().acquire_owned()).await;
        let turn = turn.map_err(|_elapsed| StoreError::Busy)?.map_err(|_closed| StoreError::Busy)?;
        let mut client = self.client().await?;
        client.turn = Some(turn);
        let begin = format!(
            "BEGIN; SELECT pg_advisory_xact_lock({CHANGE_LOCK}); SELECT pg_logical_emit_message(true, 'adriaticum', '')"
        );
        client.begin(&begin).await?;
        Ok(client)
    }

    /// A snapshot that may take long. At most half of the pool is used for these, so that others get connections.
    pub(crate) async fn report<T>(
        &self,
        read: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let _turn = self.reports.acquire().await.map_err(|_closed| StoreError::Busy)?;
        self.snapshot(read).await
    }

    /// Reads in one snapshot of the database.
    pub(crate) async fn snapshot<T>(
        &self,
        read: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut client = self.client().await?;
        client.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let result = client.run(SNAPSHOT_TIMEOUTS, read).await?;
        client.commit().await?;
        Ok(result)
    }
}

impl PooledClient {
    pub(crate) async fn execute(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<u64, StoreError> {
        self.run(1, async |client| Ok(client.execute_typed(sql, &typed(parameters)).await?)).await
    }

    pub(crate) async fn commit(&mut self) -> Result<(), StoreError> {
        self.state = ClientState::Commit;
        let session = self.session();
        let limit = session.server().timeout() + RESPONSE_MARGIN;
        let committed = session.commit(async |client| client.batch_execute("COMMIT").await);
        tokio::time::timeout(limit, committed).await.map_err(|_elapsed| StoreError::TimedOut)??;
        self.state = ClientState::Idle;
        Ok(())
    }

    pub(crate) async fn roll_back(&mut self) -> Result<(), StoreError> {
        self.batch_execute("ROLLBACK").await?;
        self.state = ClientState::Idle;
        Ok(())
    }

    async fn begin(&mut self, sql: &str) -> Result<(), StoreError> {
        self.state = ClientState::Transaction;
        self.batch_execute(sql).await
    }

    async fn batch_execute(&mut self, sql: &str) -> Result<(), StoreError> {
        self.run(1, async |client| Ok(client.batch_execute(sql).await?)).await
    }

    /// Runs up to `statements` statements. Outside of a transaction, the client can be reused only if this succeeds.
    pub(crate) async fn run<T>(
        &mut self,
        statements: u32,
        run: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let before = self.state;
        if before == ClientState::Idle {
            self.state = ClientState::Statement;
        }
        let session = self.session();
        let limit = (session.server().timeout() + RESPONSE_MARGIN) * statements;
        let result = tokio::time::timeout(limit, run(session)).await.map_err(|_elapsed| StoreError::TimedOut)??;
        self.state = before;
        Ok(result)
    }

    fn session(&mut self) -> &mut Object<Manager> {
        self.session.as_mut().expect("the session exists until the drop")
    }
}

impl Drop for PooledClient {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && self.state != ClientState::Idle
        {
            let server = session.server().clone();
            server.spawn(reset(session, self.state, self.turn.take()));
        }
    }
}

/// Waits for the end of a dropped client's statement and returns the session to the pool, or else closes it. Until then it
/// keeps its place in the pool and its permit, so that disconnecting callers cannot cause more connections.
async fn reset(mut session: Object<Manager>, state: ClientState, turn: Option<OwnedSemaphorePermit>) {
    let (sql, timeout) = match state {
        ClientState::Idle | ClientState::Statement => ("", ABANDONED_TIMEOUT),
        ClientState::Transaction => ("ROLLBACK", ABANDONED_TIMEOUT),
        ClientState::Commit => ("", session.server().timeout()),
    };
    if !matches!(tokio::time::timeout(timeout, session.batch_execute(sql)).await, Ok(Ok(()))) {
        if let Some(closed) = session.close() {
            let _ = closed.await;
        }
        drop(Object::take(session));
    } else {
        session.commit_ended();
    }
    drop(turn);
}

pub(crate) struct Manager(pub(crate) Server);

impl managed::Manager for Manager {
    type Type = Session;
    type Error = StoreError;

    async fn create(&self) -> Result<Session, StoreError> {
        self.0.connect().await
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<StoreError> {
        if session.is_closed() { Err(RecycleError::message("closed")) } else { Ok(()) }
    }
}

pub(crate) fn typed<'a>(parameters: &'a [Value<'_>]) -> Vec<Parameter<'a>> {
    let typed = |value: &'a Value<'_>| {
        let kind = match value {
            Value::Text(_) => Type::TEXT,
            Value::Integer(_) => Type::INT8,
            Value::Bytes(_) => Type::BYTEA,
            Value::Request(_) => Type::UUID,
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
            Self::Request(id) => Uuid::from_bytes(id.to_bytes()).to_sql(kind, out),
            Self::Bool(flag) => flag.to_sql(kind, out),
        }
    }

    /// `typed` sets the type of each parameter.
    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
