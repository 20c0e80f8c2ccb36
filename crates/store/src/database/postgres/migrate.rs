//! Migrations of a database that many replicas use.

use std::time::Duration;

use tokio_postgres::{Client, GenericClient};

use crate::StoreError;
use crate::database::postgres::ddl::{Changed, change_tables};
use crate::database::postgres::typed;
use crate::database::schema::{MIGRATIONS, Migration};
use crate::database::sql::params;

/// Advisory locks, with numbers that other programs are unlikely to use.
const MIGRATION_LOCK: i64 = 0x6164_7269_6100_0001;
pub(crate) const CHANGE_LOCK: i64 = 0x6164_7269_6100_0002;
pub(crate) const PARTITION_LOCK: i64 = 0x6164_7269_6100_0003;
pub(crate) const FOLD_LOCK: i64 = 0x6164_7269_6100_0004;

/// How often a replica checks whether another one has migrated the tables.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The first and the longest pause between attempts to migrate tables that are in use.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];

/// Migrates under a lock, because many replicas may start at the same time.
pub(crate) async fn migrate(client: &mut Client) -> Result<(), StoreError> {
    apply(client, &steps()).await
}

fn steps() -> Vec<String> {
    MIGRATIONS.iter().map(Migration::for_postgres).collect()
}

async fn apply(client: &mut Client, steps: &[String]) -> Result<(), StoreError> {
    let known = steps.len() as i64;
    loop {
        let found = version(client).await?.unwrap_or(0);
        if found == known {
            return Ok(());
        } else if !(0..known).contains(&found) {
            return Err(StoreError::SchemaTooNew { found, known });
        }
        // Held between two attempts, so that only one starting replica at a time blocks those that serve.
        let lock = client.query_typed_one("SELECT pg_try_advisory_lock($1)", &typed(params![MIGRATION_LOCK])).await?;
        if lock.try_get(0)? {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let [mut pause, longest] = RETRY_PAUSES;
    while let Changed::InUse = apply_once(client, steps).await? {
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
    client.query_typed("SELECT pg_advisory_unlock($1)", &typed(params![MIGRATION_LOCK])).await?;
    Ok(())
}

/// Runs the outstanding steps in one transaction.
async fn apply_once(client: &mut Client, steps: &[String]) -> Result<Changed<()>, StoreError> {
    change_tables(client, "migrating the tables", async |transaction| {
        transaction.batch_execute("SET LOCAL statement_timeout = 0").await?; // a step may take long
        let done = version(transaction).await?.unwrap_or(0);
        for step in steps.iter().skip(usize::try_from(done).unwrap_or(usize::MAX)) {
            transaction.batch_execute(step).await?;
        }
        let note = format!(
            "CREATE TABLE IF NOT EXISTS adriaticum_schema (version bigint NOT NULL);
             DELETE FROM adriaticum_schema; INSERT INTO adriaticum_schema VALUES ({})",
            steps.len()
        );
        transaction.batch_execute(&note).await?;
        Ok(Some(()))
    })
    .await
}

/// `None` in an empty database.
async fn version(client: &impl GenericClient) -> Result<Option<i64>, StoreError> {
    if !table_exists(client, "adriaticum_schema").await? {
        return Ok(None);
    }
    let found = client.query_typed("SELECT version FROM adriaticum_schema", &[]).await?;
    Ok(found.first().map(|row| row.try_get(0)).transpose()?)
}

/// Reads the catalogue, because a connection's cache of names may be older than its newest lock.
pub(crate) async fn table_exists(client: &impl GenericClient, table: &str) -> Result<bool, StoreError> {
    let find = "SELECT EXISTS (SELECT FROM pg_tables
        WHERE tablename = $1 AND schemaname = ANY (current_schemas(false)))";
    Ok(client.query_typed(find, &typed(params![table])).await?.first().is_some_and(|row| row.get(0)))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use testbed::Cluster;

    use super::*;
    use crate::database::postgres::server::Server;
    use crate::usage::rollup::{Entry, Outcome, Timings};
    use crate::{Database, PostgresSettings, Store};

    /// A newer version migrates while a replica serves and a dump holds locks on all tables.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_migration_during_a_dump_delays_no_request() {
        let cluster = Cluster::shared();
        let url = cluster.create_database();
        let settings = PostgresSettings { url: url.parse().unwrap(), connections: 2, timeout: Duration::from_secs(5) };
        let store = Store::open(&Database::Postgres(settings.clone())).await.unwrap();
        let (ledger, writer) = store.start_ledger(Duration::from_secs(86_400)).unwrap();
        let dump = cluster.start_dump(&url);

        let next = "ALTER TABLE keys ADD COLUMN later text; ALTER TABLE requests ADD COLUMN later text";
        let steps: Vec<_> = steps().into_iter().chain([next.to_owned()]).collect();
        let migration = tokio::spawn(async move {
            let mut session = Server::new(&settings).unwrap().connect().await?;
            apply(&mut session, &steps).await
        });
        let mut longest = Duration::ZERO;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            let row = Entry {
                request_id: chat::RequestId::now(),
                key: "000000000001".parse().unwrap(),
                owner: None,
                project: None,
                outcome: Outcome { status: 200, code: None },
                usage: Default::default(),
                timings: Timings::default(),
                grounding: None,
                inference: Default::default(),
            };
            let sent = Instant::now();
            ledger.record(row, None).await.unwrap();
            longest = longest.max(sent.elapsed());
        }
        assert!(longest < Duration::from_secs(1), "a request waited for {longest:?}");
        assert!(!migration.is_finished());
        drop(dump);
        migration.await.unwrap().unwrap();
        assert_eq!(cluster.sql(&url, "SELECT version FROM adriaticum_schema"), (MIGRATIONS.len() + 1).to_string());
        writer.stop();
    }
}
