//! PostgreSQL's side of the ledger: one transaction for a group of rows and all their roll-ups, in two round trips.
//!
//! Replicas update the same roll-ups. All write them in the same order, the most shared ones last and together with the
//! commit. So there are no deadlocks, and locks are held briefly. If a connection breaks, the group is tried once more
//! on another one; rows that did get committed are not counted again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use chat::{RequestId, Timestamp};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use super::columns::{Columns, FigureColumns, fits};
use super::schema::{DAY_MILLIS, create_coming_partitions, drop_partitions_before};
use super::server::{Server, Session};
use super::{count, count_if_any, number, signed};
use crate::StoreError;
use crate::clock::StoreClock;
use crate::ledger::{CommitError, CommitTimings, Committed, LedgerBackend, QueuedRow};
use crate::pruning::{ClockReading, Deleted, Due};
use crate::rollup::{Entry, KeySum, Resolution, Rollups};
use crate::{links, sessions};

/// More than any usual group of rows.
const PROBE_BYTES: usize = 64 * 1024;
/// Rows deleted in one statement, where they are not deleted by whole partitions.
const PRUNE_BATCH_ROWS: i64 = 500;

pub(crate) struct PostgresLedger {
    server: Server,
    clock: Arc<StoreClock>,
    open: Option<LedgerConnection>,
    /// The last day that was found to have no partition of its own.
    day_without_partition: Option<u64>,
}

struct LedgerConnection {
    client: Session,
    save_timings: Statement,
    insert: Statement,
    touch_keys: Statement,
    add_sums: Statement,
    add_hours: Statement,
}

impl PostgresLedger {
    pub(super) fn new(server: Server, clock: Arc<StoreClock>) -> Self {
        Self { server, clock, open: None, day_without_partition: None }
    }

    /// Runs something on the connection, and reconnects first if there is none. After any failure the connection is
    /// closed, and the server rolls back.
    fn with<T>(
        &mut self,
        run: impl AsyncFnOnce(&mut LedgerConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let server = self.server.clone();
        let result = server.block_on(async {
            let limited = tokio::time::timeout(server.timeout(), async {
                let open = match self.open.take() {
                    Some(open) if !open.client.is_closed() => open,
                    _ => LedgerConnection::new(&server).await?,
                };
                run(self.open.insert(open)).await
            });
            limited.await.unwrap_or(Err(StoreError::TimedOut))
        });
        if result.is_err() {
            self.open = None;
        }
        result
    }

    fn commit_rows(&mut self, rows: &[&Entry], timings: Option<&CommitTimings>) -> Result<i64, StoreError> {
        let id = next_commit_id(self.clock.now_micros());
        let first = self.with(async |open| open.commit(id, rows, timings).await);
        match first {
            Err(error) if is_transient(&error) => {
                tracing::info!(cause = %error, "retrying the commit of the ledger on a new connection");
                let id = next_commit_id(self.clock.now_micros());
                self.with(async |open| open.commit(id, rows, timings).await)
            }
            other => other,
        }
    }
}

impl LedgerBackend for PostgresLedger {
    fn commit(&mut self, group: &[QueuedRow], timings: Option<CommitTimings>) -> Result<Committed, CommitError> {
        let failed = |error: StoreError| CommitError(error.to_string());
        let (good, refused): (Vec<_>, Vec<_>) = (0..group.len()).partition(|&at| fits(&group[at].entry));
        let rows: Vec<_> = good.iter().map(|&at| &group[at].entry).collect();
        match self.commit_rows(&rows, timings.as_ref()) {
            Ok(commit) => Ok(Committed { commit, refused }),
            // The server objects to one of the rows, and does not say which.
            Err(error) if rows.len() > 1 && is_row_error(&error) => {
                let mut committed = Committed { commit: 0, refused };
                self.commit_rows(&[], timings.as_ref()).map_err(failed)?;
                for at in good {
                    match self.commit_rows(&[&group[at].entry], None) {
                        Ok(commit) => committed.commit = commit,
                        Err(error) if is_row_error(&error) => committed.refused.push(at),
                        Err(other) => return Err(failed(other)),
                    }
                }
                Ok(committed)
            }
            Err(error) if rows.len() == 1 && is_row_error(&error) => {
                Ok(Committed { commit: 0, refused: (0..group.len()).collect() })
            }
            Err(other) => Err(failed(other)),
        }
    }

    fn probe(&mut self) -> Result<(), CommitError> {
        let written = self.with(async |open| {
            let filler = vec![0_u8; PROBE_BYTES];
            let write = "INSERT INTO probe VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET filler = excluded.filler";
            Ok(open.client.execute_typed(write, &[super::bytes(&filler)]).await?)
        });
        written.map(drop).map_err(|error| CommitError(error.to_string()))
    }

    fn read_clock(&mut self) -> Result<ClockReading, CommitError> {
        let clock = self.clock.clone();
        let read = self.with(async |open| {
            let read = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
                (SELECT time FROM retention_clock)";
            let asked = Instant::now();
            let row = open.client.query_typed_one(read, &[]).await?;
            let (server, stored) = (count(&row, 0)?, count_if_any(&row, 1)?.map(Timestamp::from_millis));
            clock.correct(server, asked, Instant::now());
            let newest_row = match stored {
                Some(_) => None,
                None => open.client.query_typed_opt("SELECT id FROM requests ORDER BY id DESC LIMIT 1", &[]).await?,
            };
            let newest_row = newest_row.map(|row| request_id(&row)).transpose()?.map(RequestId::timestamp);
            Ok(ClockReading { clock: Timestamp::from_micros(server), stored, newest_row })
        });
        read.map_err(|error| CommitError(error.to_string()))
    }

    fn store_time(&mut self, before: Option<Timestamp>, time: Timestamp) -> Result<(), CommitError> {
        let [before, time] = [before, Some(time)].map(|time| time.map(|time| signed(time.as_millis())));
        let stored = self.with(async |open| {
            let store = "INSERT INTO retention_clock AS stored VALUES (1, $2)
                ON CONFLICT (id) DO UPDATE SET time = excluded.time WHERE stored.time = $1";
            Ok(open.client.execute_typed(store, &[number(&before), number(&time)]).await?)
        });
        stored.map(drop).map_err(|error| CommitError(error.to_string()))
    }

    fn delete_ended(&mut self, due: Due) -> Result<(), CommitError> {
        let [began, seen] = sessions::oldest_valid(due.now).map(|time| signed(time.as_millis()));
        let now = signed(due.now.as_millis());
        let deleted = self.with(async |open| {
            open.client.execute_typed(sessions::DELETE_ENDED, &[number(&began), number(&seen)]).await?;
            Ok(open.client.execute_typed(links::DELETE_ENDED, &[number(&now)]).await?)
        });
        deleted.map(drop).map_err(|error| CommitError(error.to_string()))
    }

    fn prune(&mut self, due: Due) -> Result<Deleted, CommitError> {
        let mut left_out = None;
        let pruned = self.with(async |open| {
            left_out = create_coming_partitions(&mut open.client, due.clock.as_millis() / DAY_MILLIS).await?;
            prune(&mut open.client, due).await
        });
        if let Some(day) = left_out.filter(|day| self.day_without_partition.replace(*day) != Some(*day)) {
            tracing::warn!(day, "many rows of this coming day are in the default partition already, and it stays so");
        }
        match pruned {
            // Somebody reads these rows, or another replica deletes them: try again next time.
            Err(error) if error.sql_state() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(Deleted::default()),
            other => other.map_err(|error| CommitError(error.to_string())),
        }
    }

    fn disconnect(&mut self) {
        self.open = None;
    }

    fn close(&mut self) {
        self.open = None;
    }
}

async fn prune(client: &mut Client, due: Due) -> Result<Deleted, StoreError> {
    let before = due.rows_before;
    let mut deleted = drop_partitions_before(client, before.as_millis() / DAY_MILLIS).await?;
    // With a retention of days, the rest of the oldest day may stay until the day is over.
    let among = if before.as_millis() + 2 * DAY_MILLIS < due.now.as_millis() { "_others" } else { "" };
    let old = format!(
        "DELETE FROM requests WHERE id IN (
             SELECT id FROM requests{among} WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING id"
    );
    let id = Uuid::from_bytes(RequestId::first_at(before).to_bytes());
    let rows = client.query_typed(&old, &[(&id, Type::UUID), number(&PRUNE_BATCH_ROWS)]).await?;
    for row in &rows {
        let at = request_id(row)?.timestamp();
        deleted.add(1, at, at);
    }
    deleted.more = rows.len() as i64 == PRUNE_BATCH_ROWS;
    let old = format!(
        "DELETE FROM commits WHERE id IN (
             SELECT id FROM commits{among} WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)"
    );
    let first = first_commit_id_at(before.as_millis().saturating_mul(1000));
    client.execute_typed(&old, &[number(&first), number(&PRUNE_BATCH_ROWS)]).await?;
    Ok(deleted)
}

fn request_id(row: &Row) -> Result<RequestId, StoreError> {
    Ok(RequestId::from_bytes(row.try_get::<_, Uuid>(0)?.into_bytes()))
}

impl LedgerConnection {
    async fn new(server: &Server) -> Result<Self, StoreError> {
        let client = server.connect().await?;
        Ok(Self {
            save_timings: client.prepare(SAVE_TIMINGS).await?,
            insert: client.prepare(INSERT).await?,
            touch_keys: client.prepare(TOUCH_KEYS).await?,
            add_sums: client.prepare(ADD_SUMS).await?,
            add_hours: client.prepare(ADD_HOURS).await?,
            client,
        })
    }

    /// Commits rows, and returns the commit's id.
    async fn commit(
        &mut self,
        commit: i64,
        rows: &[&Entry],
        timings: Option<&CommitTimings>,
    ) -> Result<i64, StoreError> {
        let mut rollups = Rollups::default();
        // First what no other replica touches. Only here is known which rows, or the timings, were written before.
        let begin = begin(commit);
        let (begun, noted, inserted) = tokio::join!(
            biased; // in this order
            self.client.batch_execute(&begin),
            self.save_timings(commit, timings),
            self.insert(commit, rows),
        );
        begun?;
        if let (true, Some(timings)) = (noted?, timings) {
            rollups = timings.rollups.clone();
        }
        // Removed once counted: a group may hold a request twice.
        let mut new = inserted?;
        rows.iter().filter(|entry| new.remove(&entry.request_id)).for_each(|entry| rollups.add(entry));
        // Then, with nothing in between, what all replicas update.
        self.client.set_committing(true);
        let (used, sums, hours, committed) = tokio::join!(
            biased;
            self.touch_keys(&rollups),
            self.add_sums(&rollups),
            self.add_hours(&rollups),
            self.client.batch_execute("COMMIT"),
        );
        // A COMMIT after a failed statement is a rollback that reports success.
        used.and(sums).and(hours)?;
        committed?;
        self.client.set_committing(false);
        Ok(commit)
    }

    /// Writes when the last commit was durable; `false` if that was written before.
    async fn save_timings(&self, commit: i64, timings: Option<&CommitTimings>) -> Result<bool, StoreError> {
        let Some(timings) = timings else { return Ok(false) };
        let at = timings.persisted_at_micros as i64;
        Ok(self.client.execute(&self.save_timings, &[&timings.commit, &at, &commit]).await? == 1)
    }

    /// Inserts rows, and returns the ids of those that were new.
    async fn insert(&self, commit: i64, rows: &[&Entry]) -> Result<HashSet<RequestId>, StoreError> {
        if rows.is_empty() {
            return Ok(HashSet::new());
        }
        let columns = Columns::of(rows);
        let inserted = self.client.query(&self.insert, &columns.parameters(&commit)).await?;
        inserted.iter().map(request_id).collect()
    }

    async fn touch_keys(&self, rollups: &Rollups) -> Result<(), StoreError> {
        let used = rollups.sums().filter(|(key, _)| key.span == Resolution::EightDays);
        let (keys, at): (Vec<_>, Vec<_>) =
            used.map(|(key, sum)| (key.key.to_string(), sum.figures.last_at.as_millis() as i64)).unzip();
        if !keys.is_empty() {
            self.client.execute(&self.touch_keys, &[&keys, &at]).await?;
        }
        Ok(())
    }

    async fn add_sums(&self, rollups: &Rollups) -> Result<(), StoreError> {
        let (mut spans, mut starts, mut keys, mut succeeded) = (vec![], vec![], vec![], vec![]);
        let mut figures = FigureColumns::default();
        for (key, KeySum { figures: sums, succeeded: count }) in rollups.sums() {
            spans.push(key.span.seconds() as i64);
            starts.push(key.start as i64);
            keys.push(key.key.to_string());
            succeeded.push(*count as i64);
            figures.push(sums);
        }
        if !keys.is_empty() {
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&spans, &starts, &keys];
            parameters.extend(figures.parameters());
            parameters.push(&succeeded);
            self.client.execute(&self.add_sums, &parameters).await?;
        }
        Ok(())
    }

    async fn add_hours(&self, rollups: &Rollups) -> Result<(), StoreError> {
        let (mut parties, mut starts, mut statuses, mut codes) = (vec![], vec![], vec![], vec![]);
        let mut figures = FigureColumns::default();
        // One array for all latencies, and where each row's start and end: `unnest` would flatten an array of arrays.
        let (mut latencies, mut begins, mut ends) = (Vec::new(), vec![], vec![]);
        for (key, sums, counts) in rollups.hours() {
            parties.push(key.party.to_string());
            starts.push(key.start as i64);
            statuses.push(key.outcome.status as i16);
            codes.push(key.outcome.code.unwrap_or(""));
            figures.push(sums);
            begins.push(latencies.len() as i32 + 1);
            latencies.extend(counts.packed());
            ends.push(latencies.len() as i32);
        }
        if !parties.is_empty() {
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&parties, &starts, &statuses, &codes];
            parameters.extend(figures.parameters());
            parameters.extend([&begins as &(dyn ToSql + Sync), &ends, &latencies]);
            self.client.execute(&self.add_hours, &parameters).await?;
        }
        Ok(())
    }
}

/// Begins the transaction of a group, and marks it with the commit's id. The next statements are sent before it is
/// known whether BEGIN succeeded. If it did not, each would be committed on its own; so the first ones check for the
/// mark, which only this transaction has.
fn begin(commit: i64) -> String {
    format!("BEGIN; SET LOCAL adriaticum.commit_id = '{commit}'")
}

const SAVE_TIMINGS: &str = "UPDATE commits SET persisted_at_us = $2
    WHERE id = $1 AND persisted_at_us IS NULL AND current_setting('adriaticum.commit_id', true) = $3::bigint::text";

const INSERT: &str = "WITH this AS (
        INSERT INTO commits (id) SELECT $1 WHERE current_setting('adriaticum.commit_id', true) = $1::bigint::text
    )
    INSERT INTO requests (commit_id, id, key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
        queue_us, search_us, inference_us, total_us, score, scorer, sources)
    SELECT $1, * FROM unnest($2::uuid[], $3::text[], $4::smallint[], $5::text[], $6::bigint[], $7::bigint[],
        $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::real[], $14::integer[],
        $15::integer[])
    WHERE current_setting('adriaticum.commit_id', true) = $1::bigint::text
    ON CONFLICT (id) DO NOTHING RETURNING id";

const TOUCH_KEYS: &str = "UPDATE keys SET last_used_at = used.at FROM (
        SELECT keys.id, each.at FROM keys JOIN unnest($1::text[], $2::bigint[]) AS each (id, at) ON each.id = keys.id
        WHERE last_used_at IS NULL OR last_used_at < each.at ORDER BY keys.id FOR NO KEY UPDATE OF keys
    ) AS used WHERE keys.id = used.id";

const ADD_SUMS: &str = r#"INSERT INTO key_sums AS sums SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[],
        $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
        $11::bigint[], $12::bigint[]) AS new (span, start, key_id)
    ORDER BY span, start, key_id COLLATE "C"
    ON CONFLICT (span, start, key_id) DO UPDATE SET
        requests = sums.requests + excluded.requests,
        prompt_tokens = sums.prompt_tokens + excluded.prompt_tokens,
        prompt_measured = sums.prompt_measured + excluded.prompt_measured,
        completion_tokens = sums.completion_tokens + excluded.completion_tokens,
        completion_measured = sums.completion_measured + excluded.completion_measured,
        total_tokens = sums.total_tokens + excluded.total_tokens,
        total_measured = sums.total_measured + excluded.total_measured,
        last_at = greatest(sums.last_at, excluded.last_at),
        succeeded = sums.succeeded + excluded.succeeded"#;

/// The scope of everyone is the empty text, and sorts last.
const ADD_HOURS: &str = r#"INSERT INTO rollups AS sums
    SELECT party, start, status, code, requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured,
        total_tokens, total_measured, last_at, ($15::bigint[])[begins:ends]
    FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
        $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::integer[], $14::integer[])
        AS new (party, start, status, code, requests, prompt_tokens, prompt_measured, completion_tokens,
            completion_measured, total_tokens, total_measured, last_at, begins, ends)
    ORDER BY party COLLATE "C" DESC, start, status, code COLLATE "C"
    ON CONFLICT (party, start, status, code) DO UPDATE SET
        requests = sums.requests + excluded.requests,
        prompt_tokens = sums.prompt_tokens + excluded.prompt_tokens,
        prompt_measured = sums.prompt_measured + excluded.prompt_measured,
        completion_tokens = sums.completion_tokens + excluded.completion_tokens,
        completion_measured = sums.completion_measured + excluded.completion_measured,
        total_tokens = sums.total_tokens + excluded.total_tokens,
        total_measured = sums.total_measured + excluded.total_measured,
        last_at = greatest(sums.last_at, excluded.last_at),
        latencies = merge_latencies(sums.latencies, excluded.latencies)"#;

/// An id for the next commit: ordered by time, so that its table grows at its end, and with a random part, so that
/// replicas rarely choose the same.
fn next_commit_id(now_micros: u64) -> i64 {
    let id = RequestId::arrived_at(now_micros);
    first_commit_id_at(id.unix_micros()) | i64::from(u16::from_be_bytes([id.to_bytes()[14], id.to_bytes()[15]]) & 0x3ff)
}

/// The smallest id of a commit at a time in microseconds since 1970.
pub(super) fn first_commit_id_at(micros: u64) -> i64 {
    (micros << 10) as i64
}

/// Whether another connection may succeed: this one is closed, or its server has become read-only, or the server
/// aborted a transaction that did nothing wrong.
fn is_transient(error: &StoreError) -> bool {
    let StoreError::Postgres(error) = error else { return false };
    match error.code() {
        None => true, // the connection itself
        Some(code) => {
            let transient = [
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CRASH_SHUTDOWN,
                SqlState::CANNOT_CONNECT_NOW,
                SqlState::READ_ONLY_SQL_TRANSACTION,
                SqlState::T_R_DEADLOCK_DETECTED,
                SqlState::T_R_SERIALIZATION_FAILURE,
                SqlState::UNIQUE_VIOLATION, // another replica's commit has the same number
            ];
            transient.contains(code) || code.code().starts_with("08")
        }
    }
}

/// Whether the server objects to the contents of a row.
fn is_row_error(error: &StoreError) -> bool {
    error.sql_state().is_some_and(|code| ["22", "23"].iter().any(|class| code.code().starts_with(class)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::postgres::{Postgres, PostgresSettings};
    use crate::rollup::{Outcome, Timings};

    #[tokio::test]
    async fn a_group_whose_transaction_did_not_begin_writes_nothing() {
        let url = testbed::Cluster::shared().create_database();
        let settings = PostgresSettings { url: url.parse().unwrap(), connections: 1, timeout: Duration::from_secs(5) };
        let (database, _clock) = Postgres::open(&settings).await.unwrap();
        let mut open = LedgerConnection::new(&database.server).await.unwrap();
        let entry = Entry {
            request_id: RequestId::now(),
            key: "000000000001".parse().unwrap(),
            owner: None,
            outcome: Outcome { status: 200, code: None },
            usage: Default::default(),
            timings: Timings::default(),
            grounding: None,
        };
        let rows = async |open: &LedgerConnection| {
            open.client.query_typed("SELECT id FROM requests", &[]).await.unwrap().len()
        };
        let next_commit_id = || next_commit_id(RequestId::now().unix_micros());
        let recorded = open.commit(next_commit_id(), &[&entry], None).await.unwrap();
        let timings = CommitTimings { commit: recorded, persisted_at_micros: 1, rollups: Rollups::default() };
        let another = Entry { request_id: RequestId::now(), ..entry.clone() };
        let commit = next_commit_id();
        assert!(open.insert(commit, &[&another]).await.unwrap().is_empty());
        assert!(!open.save_timings(commit, Some(&timings)).await.unwrap());
        assert_eq!(rows(&open).await, 1);
        open.commit(next_commit_id(), &[&another], Some(&timings)).await.unwrap();
        assert_eq!(rows(&open).await, 2);
    }
}
