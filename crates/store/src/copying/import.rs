//! Writes a copy of a SQLite database, in one transaction.

use std::path::Path;
use std::pin::Pin;

use chat::Timestamp;
use rusqlite::types::Value;
use tokio_postgres::Client;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use crate::copying::copy::{Cell, CopyError, TABLES, Table};
use crate::database::postgres::migrate::{CHANGE_LOCK, FOLD_LOCK, migrate};
use crate::database::postgres::server::{Server, Session};
use crate::database::postgres::{PostgresSettings, server_micros, typed};
use crate::database::snapshot::Snapshot;
use crate::database::sql::params;
use crate::ledger::partitions::{DAY_MILLIS, DAYS_AHEAD, create_partitions};
use crate::usage::latency::Latencies;
use crate::usage::reports::read_everything;
use crate::{StoreError, UsageReport};

/// Longer than any usual retention. Older rows go to the default partition.
const MAX_DAYS: u64 = 400;

pub(crate) struct Import {
    client: Session,
}

impl Import {
    /// Connects and migrates; the transaction starts in `prepare`.
    pub(crate) async fn begin(settings: &PostgresSettings) -> Result<Self, CopyError> {
        let server = Server::new(settings)?;
        let mut client = server.connect().await?;
        migrate(&mut client).await?;
        let import = Self { client };
        // A copy may take long. `lock_timeout` stays: it must not wait long for other users of the database.
        import.run("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0").await?;
        Ok(import)
    }

    /// Creates partitions for these days, and empties all tables. Fails if they hold data that no copy has written.
    pub(crate) async fn prepare(&mut self, days: Option<(u64, u64)>) -> Result<(), CopyError> {
        if let Some((first, last)) = days {
            // A row dated in another year by a wrong clock must not move the range of partitions.
            let today = server_micros(&*self.client).await? / 1000 / DAY_MILLIS;
            let first = first.max((today + 1).saturating_sub(MAX_DAYS));
            let last = last.min(today + DAYS_AHEAD) + 1; // a commit may fall on the next day
            create_partitions(&mut self.client, first, (last + 1).saturating_sub(first)).await?;
        }
        // The tables are inspected under these locks, so that nothing is committed between the inspection and the copy.
        let tables = TABLES.join(", ");
        let lock = format!(
            "BEGIN;
             SELECT pg_advisory_xact_lock({CHANGE_LOCK}); SELECT pg_advisory_xact_lock({FOLD_LOCK});
             CREATE TABLE IF NOT EXISTS adriaticum_copy (source text NOT NULL, at bigint NOT NULL, found text NOT NULL);
             LOCK TABLE {tables}, adriaticum_copy IN ACCESS EXCLUSIVE MODE"
        );
        self.run(&lock).await?;
        let found = fingerprint(&self.client).await?;
        let select = "SELECT found FROM adriaticum_copy";
        let earlier = Snapshot::Postgres(&self.client).query(select, &[], |row| row.get::<String>(0)).await?;
        if found != EMPTY && !earlier.contains(&found) {
            return Err(CopyError::Occupied);
        }
        Ok(self.run(&format!("TRUNCATE {tables}; DELETE FROM adriaticum_copy")).await?)
    }

    pub(crate) async fn table(&self, name: &'static str) -> Result<Table, StoreError> {
        let all = self.client.prepare(&format!("SELECT * FROM {name}")).await?;
        let columns = all.columns().iter().map(|column| (column.name().to_owned(), column.type_().clone())).collect();
        Ok(Table { name, columns })
    }

    pub(crate) async fn copy(&self, table: &Table) -> Result<CopyWriter, StoreError> {
        let copy = format!("COPY {} ({}) FROM STDIN (FORMAT binary)", table.name, table.column_names());
        let types: Vec<_> = table.columns.iter().map(|(_, kind)| kind.clone()).collect();
        let sink = self.client.copy_in(&copy).await?;
        Ok(CopyWriter(Box::pin(BinaryCopyInWriter::new(sink, &types))))
    }

    /// Count and sums of a table.
    pub(crate) async fn check(&self, table: &Table) -> Result<Vec<i64>, StoreError> {
        let check = format!("SELECT ARRAY[{}]::bigint[] FROM {}", table.checks(), table.name);
        Ok(self.client.query_typed_one(&check, &[]).await?.try_get(0)?)
    }

    pub(crate) async fn report(&self) -> Result<UsageReport, StoreError> {
        read_everything(&mut Snapshot::Postgres(&self.client)).await
    }

    /// Stores a fingerprint of the copy, by which a later copy recognises it, and commits.
    pub(crate) async fn finish(&mut self, source: &Path, now: Timestamp) -> Result<(), StoreError> {
        let (source, found) = (source.display().to_string(), fingerprint(&self.client).await?);
        let note = "INSERT INTO adriaticum_copy VALUES ($1, $2, $3)";
        self.client.execute_typed(note, &typed(params![&*source, now, &*found])).await?;
        let numbering = "SELECT setval(pg_get_serial_sequence('audit', 'number'),
            (SELECT coalesce(max(number), 0) + 1 FROM audit), false)";
        self.client.query_typed(numbering, &[]).await?;
        let version = getrandom::u64()? >> 1;
        self.run(&format!("UPDATE limits_version SET version = {version}")).await?; // replicas may already be running
        self.client.commit(async |client| client.batch_execute("COMMIT").await).await?;
        self.run("ANALYZE").await
    }

    async fn run(&self, statements: &str) -> Result<(), StoreError> {
        Ok(self.client.batch_execute(statements).await?)
    }
}

/// A fingerprint of the contents, which any use of the database changes.
async fn fingerprint(client: &Client) -> Result<String, StoreError> {
    let figures = "SELECT format('%s keys, %s accounts, audit to %s, %s roll-ups of %s requests, %s commits',
        (SELECT count(*) FROM keys), (SELECT count(*) FROM accounts), (SELECT coalesce(max(number), 0) FROM audit),
        (SELECT count(*) FROM rollups), (SELECT coalesce(sum(requests), 0) FROM rollups WHERE party = ''),
        (SELECT count(*) FROM unfolded))";
    Ok(client.query_typed_one(figures, &[]).await?.try_get(0)?)
}

const EMPTY: &str = "0 keys, 0 accounts, audit to 0, 0 roll-ups of 0 requests, 0 commits";

pub(crate) struct CopyWriter(Pin<Box<BinaryCopyInWriter>>);

impl CopyWriter {
    pub(crate) async fn write(&mut self, rows: Vec<Vec<Cell>>) -> Result<(), StoreError> {
        for row in rows {
            self.0.as_mut().write_raw(row.iter().map(|cell| cell as &(dyn ToSql + Sync))).await?;
        }
        Ok(())
    }

    pub(crate) async fn finish(mut self) -> Result<(), StoreError> {
        self.0.as_mut().finish().await?;
        Ok(())
    }
}

/// Values are converted to the type of their column; one that does not fit fails the copy.
impl ToSql for Cell {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match &self.0 {
            Value::Null => Ok(IsNull::Yes),
            Value::Integer(number) if *kind == Type::BOOL => (*number != 0).to_sql(kind, out),
            Value::Integer(number) if *kind == Type::INT2 => i16::try_from(*number)?.to_sql(kind, out),
            Value::Integer(number) if *kind == Type::INT4 => i32::try_from(*number)?.to_sql(kind, out),
            Value::Integer(number) => number.to_sql(kind, out),
            Value::Real(number) => (*number as f32).to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
            Value::Blob(bytes) if *kind == Type::UUID => Uuid::from_slice(bytes)?.to_sql(kind, out),
            Value::Blob(bytes) if *kind == Type::UUID_ARRAY => match bytes.as_chunks() {
                (ids, []) => ids.iter().map(|&id| Uuid::from_bytes(id)).collect::<Vec<_>>().to_sql(kind, out),
                _ => Err(StoreError::Corrupt("commit").into()),
            },
            Value::Blob(bytes) if *kind == Type::INT8_ARRAY => {
                let latencies = Latencies::decode(bytes).ok_or(StoreError::Corrupt("roll-up"))?;
                latencies.packed().collect::<Vec<_>>().to_sql(kind, out)
            }
            Value::Blob(bytes) => bytes.to_sql(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
