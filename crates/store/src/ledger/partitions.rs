//! The partitions of `requests` and `commits`, one per day. They are created in advance, and dropped when the day is old.
//! If a table is in use, this is retried later. Rows of a day without a partition are in the default one.

use chat::{RequestId, Timestamp};
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;

use crate::StoreError;
use crate::database::postgres::ddl::{Changed, change_tables};
use crate::database::postgres::migrate::{PARTITION_LOCK, table_exists};
use crate::database::postgres::typed;
use crate::database::sql::{self, params};
use crate::ledger::postgres::has_unfolded_before;
use crate::ledger::pruning::Deleted;
use crate::usage::commit_id::CommitId;

/// The number of days that have partitions, from today on.
pub(crate) const DAYS_AHEAD: u64 = 3;
pub(crate) const DAY_MILLIS: u64 = 86_400_000;
/// More rows of a day are not moved out of the default partition: requests wait during the move.
const MAX_MOVED_ROWS: u64 = 10_000;
/// The rows of a larger partition are not counted but estimated, for the log, when it is dropped.
const MAX_COUNTED_ROWS: u64 = 100_000;

/// Creates the partitions for `today` and the days after it. Returns the last day that got none.
pub(crate) async fn create_coming_partitions(client: &mut Client, today: u64) -> Result<Option<u64>, StoreError> {
    if table_exists(client, &partition_name("requests", today + DAYS_AHEAD - 1)).await? {
        return Ok(None);
    }
    create_partitions(client, today, DAYS_AHEAD).await
}

/// Creates the partitions for `count` days from `first` on, in days since 1970. Rows of these days, which a wrong clock has
/// written early, move from the default partition to that of their day. A day with too many of them gets none, and is
/// returned.
pub(crate) async fn create_partitions(client: &mut Client, first: u64, count: u64) -> Result<Option<u64>, StoreError> {
    let mut left_out = None;
    for day in first..first + count {
        let created = change_tables(client, "creating the partition of a day", async |transaction| {
            let holds_lock = try_lock(transaction).await?;
            if !holds_lock || table_exists(transaction, &partition_name("requests", day)).await? {
                return Ok(Some(())); // another replica creates it
            }
            Ok(create_partition(transaction, day).await?.then_some(()))
        });
        match created.await? {
            Changed::Done(()) => {}
            Changed::Declined => left_out = Some(day),
            Changed::InUse => break,
        }
    }
    Ok(left_out)
}

/// `false` if too many rows would have to move. `ATTACH` does not lock the other partitions; only the default one is
/// locked, so that no row is added to it meanwhile.
async fn create_partition(transaction: &Transaction<'_>, day: u64) -> Result<bool, StoreError> {
    let [from, to] = [day, day + 1].map(|day| format!("'{}'", Uuid::from_bytes(first_id(day).to_bytes())));
    let [commits_from, commits_to] =
        [day, day + 1].map(|day| CommitId::first_at(day * DAY_MILLIS * 1000).number().to_string());
    for (table, from, to) in [("requests", from, to), ("commits", commits_from, commits_to)] {
        let (name, within) = (partition_name(table, day), format!("id >= {from} AND id < {to}"));
        transaction.batch_execute(&format!("LOCK TABLE {table}_others IN ACCESS EXCLUSIVE MODE")).await?;
        let early =
            format!("SELECT count(*) FROM (SELECT FROM {table}_others WHERE {within} LIMIT {MAX_MOVED_ROWS}) AS early");
        let early = transaction.query_typed_one(&early, &[]).await?;
        if sql::Row::Postgres(&early).get::<u64>(0)? == MAX_MOVED_ROWS {
            return Ok(false);
        }
        let create = format!(
            "CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS);
             WITH early AS (DELETE FROM {table}_others WHERE {within} RETURNING *) INSERT INTO {name} SELECT * FROM early;
             ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})"
        );
        transaction.batch_execute(&create).await?;
    }
    Ok(true)
}

/// Drops the partitions of all days before `first`, in days since 1970.
pub(crate) async fn drop_partitions_before(client: &mut Client, first: u64) -> Result<Deleted, StoreError> {
    let dropped = change_tables(client, "dropping the partitions of old days", async |transaction| {
        if !try_lock(transaction).await? {
            return Ok(None); // one replica is enough
        }
        let parts = "SELECT relname::text, reltuples::bigint FROM pg_class JOIN pg_inherits ON inhrelid = pg_class.oid
            WHERE inhparent IN ('requests'::regclass, 'commits'::regclass)";
        let (mut dropped, mut names) = (Deleted::default(), Vec::new());
        for part in &transaction.query_typed(parts, &[]).await? {
            let Some((table, day)) = part.try_get::<_, &str>(0)?.rsplit_once('_') else { continue };
            let Some(day) = day.parse::<u64>().ok().filter(|&day| day < first) else { continue };
            if table == "requests" {
                let [start, end] = [day, day + 1].map(|day| Timestamp::from_millis(day * DAY_MILLIS));
                dropped.add(count_rows(transaction, part).await?, start, end);
            }
            names.push(partition_name(table, day));
        }
        if names.is_empty() {
            return Ok(None);
        }
        transaction.batch_execute(&format!("DROP TABLE {}", names.join(", "))).await?;
        // Checked while the locks of `DROP` keep commits from adding rows.
        let is_counted = !has_unfolded_before(transaction, first_id(first)).await?;
        Ok(is_counted.then_some(dropped))
    });
    Ok(match dropped.await? {
        Changed::Done(dropped) => dropped,
        Changed::Declined | Changed::InUse => Deleted::default(),
    })
}

/// Rows of a partition, from its name and the server's estimate.
async fn count_rows(transaction: &Transaction<'_>, part: &Row) -> Result<u64, StoreError> {
    let (name, estimate): (&str, i64) = (part.try_get(0)?, part.try_get(1)?);
    match u64::try_from(estimate) {
        Ok(many @ MAX_COUNTED_ROWS..) => Ok(many),
        _ => {
            let count = transaction.query_typed_one(&format!("SELECT count(*) FROM {name}"), &[]).await?;
            sql::Row::Postgres(&count).get(0)
        }
    }
}

/// Returns whether no other replica is creating or dropping partitions.
async fn try_lock(transaction: &Transaction<'_>) -> Result<bool, StoreError> {
    let lock = "SELECT pg_try_advisory_xact_lock($1)";
    Ok(transaction.query_typed_one(lock, &typed(params![PARTITION_LOCK])).await?.try_get(0)?)
}

/// The first id of a day's requests.
fn first_id(day: u64) -> RequestId {
    RequestId::first_at(Timestamp::from_millis(day * DAY_MILLIS))
}

fn partition_name(table: &str, day: u64) -> String {
    format!("{table}_{day}")
}
