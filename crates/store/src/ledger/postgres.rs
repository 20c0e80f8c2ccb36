//! PostgreSQL's part of the ledger: one statement per group of rows. Replicas share no row, so none waits for another.
//!
//! If a connection breaks, the group is retried once on another one. Rows that the first attempt has committed are not
//! listed again, and are durable when the second commit is.

use std::sync::Arc;
use std::time::Instant;

use chat::{RequestId, Timestamp};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use uuid::Uuid;

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::database::postgres::server::{Server, Session};
use crate::database::postgres::{signed, typed};
use crate::database::sql::{self, Value, params};
use crate::ledger::fold::{Backlog, CommitTime};
use crate::ledger::partitions::{DAY_MILLIS, create_coming_partitions, drop_partitions_before};
use crate::ledger::postgres_columns::{Columns, fits};
use crate::ledger::pruning::{ClockReading, Deleted, Due};
use crate::ledger::queue::QueuedRow;
use crate::ledger::writer::{Committed, LedgerBackend};
use crate::limits::postgres::choose_slot;
use crate::usage::commit_id::CommitId;

/// More than any usual group of rows.
const PROBE_BYTES: usize = 64 * 1024;
/// Rows deleted per statement, where whole partitions are not dropped.
const PRUNE_BATCH_ROWS: i64 = 500;

pub(crate) struct PostgresLedger {
    server: Server,
    clock: Arc<StoreClock>,
    session: Option<Session>,
    /// The last day that was logged as having no partition.
    day_without_partition: Option<u64>,
    /// The slot of `spending` in which this replica counts.
    slot: i64,
}

impl PostgresLedger {
    pub(crate) fn new(server: Server, clock: Arc<StoreClock>) -> Self {
        Self { server, clock, session: None, day_without_partition: None, slot: choose_slot() }
    }

    fn with<T>(&mut self, run: impl AsyncFnOnce(&mut Session) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.server.block_on(self.server.with(&mut self.session, run))
    }

    fn commit_rows(&mut self, rows: &[&QueuedRow]) -> Result<Option<CommitId>, StoreError> {
        let (commit, slot) = (CommitId::new(self.clock.now_micros()), self.slot);
        let first = self.with(async |session| self::commit(session, commit, slot, rows).await);
        match first {
            Err(error) if is_transient(&error) => {
                tracing::info!(cause = %error, "retrying the commit of the ledger on a new connection");
                let commit = CommitId::new(self.clock.now_micros());
                self.with(async |session| self::commit(session, commit, slot, rows).await)
            }
            other => other,
        }
    }
}

impl LedgerBackend for PostgresLedger {
    fn commit(&mut self, group: &[QueuedRow]) -> Result<Committed, StoreError> {
        let (good, refused): (Vec<_>, Vec<_>) = (0..group.len()).partition(|&at| fits(&group[at].entry));
        let rows: Vec<_> = good.iter().map(|&at| &group[at]).collect();
        let mut committed = Committed { commit: None, refused };
        match self.commit_rows(&rows) {
            Ok(commit) => committed.commit = commit,
            // The server refuses one of the rows, and does not report which.
            Err(error) if rows.len() > 1 && is_row_error(&error) => {
                for at in good {
                    match self.commit_rows(&[&group[at]]) {
                        Ok(commit) => committed.commit = commit,
                        Err(error) if is_row_error(&error) => committed.refused.push(at),
                        Err(other) => return Err(other),
                    }
                }
            }
            Err(error) if rows.len() == 1 && is_row_error(&error) => {
                committed.refused = (0..group.len()).collect();
            }
            Err(other) => return Err(other),
        }
        Ok(committed)
    }

    /// Only stores the times: `FoldThread` adds the rows of all replicas to the sums.
    fn fold(&mut self, times: &[CommitTime]) -> Result<Option<Backlog>, StoreError> {
        let (commits, persisted): (Vec<_>, Vec<_>) =
            times.iter().map(|time| (time.commit.number(), signed(time.persisted_at_micros))).unzip();
        if commits.is_empty() {
            return Ok(None);
        }
        let stored = self.with(async |session| {
            let store = "INSERT INTO commits (id, persisted_at_us) SELECT * FROM unnest($1::bigint[], $2::bigint[])
                ON CONFLICT DO NOTHING";
            let parameters = [(&commits as _, Type::INT8_ARRAY), (&persisted as _, Type::INT8_ARRAY)];
            Ok(session.execute_typed(store, &parameters).await?)
        });
        stored.map(|_| None)
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        let written = self.with(async |session| {
            let filler = vec![0_u8; PROBE_BYTES];
            let write = "INSERT INTO probe VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET filler = excluded.filler";
            Ok(session.execute_typed(write, &typed(&[Value::Bytes(&filler)])).await?)
        });
        written.map(drop)
    }

    fn read_clock(&mut self) -> Result<ClockReading, StoreError> {
        let clock = self.clock.clone();
        self.with(async |session| {
            let read = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
                (SELECT time FROM retention_clock)";
            let asked = Instant::now();
            let row = session.query_typed_one(read, &[]).await?;
            let row = sql::Row::Postgres(&row);
            let (server, stored) = (row.get(0)?, row.get_optional(1)?);
            clock.correct(server, asked, Instant::now());
            let newest_row = match stored {
                Some(_) => None,
                None => session.query_typed_opt("SELECT id FROM requests ORDER BY id DESC LIMIT 1", &[]).await?,
            };
            let newest_row =
                newest_row.map(|row| sql::Row::Postgres(&row).get(0)).transpose()?.map(RequestId::timestamp);
            Ok(ClockReading { clock: Timestamp::from_micros(server), stored, newest_row })
        })
    }

    fn store_time(&mut self, before: Option<Timestamp>, time: Timestamp) -> Result<(), StoreError> {
        let stored = self.with(async |session| {
            let store = "INSERT INTO retention_clock AS stored VALUES (1, $2)
                ON CONFLICT (id) DO UPDATE SET time = excluded.time WHERE stored.time = $1";
            Ok(session.execute_typed(store, &typed(params![before, time])).await?)
        });
        stored.map(drop)
    }

    fn delete_ended(&mut self, due: Due) -> Result<(), StoreError> {
        self.with(async |session| {
            for (delete, times) in due.ended() {
                let times: Vec<_> = times.into_iter().map(Value::from).collect();
                session.execute_typed(delete, &typed(&times)).await?;
            }
            Ok(())
        })
    }

    fn prune(&mut self, due: Due) -> Result<Deleted, StoreError> {
        let mut left_out = None;
        let pruned = self.with(async |session| {
            left_out = create_coming_partitions(session, due.clock.as_millis() / DAY_MILLIS).await?;
            prune(session, due).await
        });
        if let Some(day) = left_out.filter(|day| self.day_without_partition.replace(*day) != Some(*day)) {
            tracing::warn!(day, "this day gets no partition: the default one already holds many of its rows");
        }
        pruned
    }

    fn disconnect(&mut self) {
        self.session = None;
    }

    fn close(&mut self) {
        self.session = None;
    }
}

async fn prune(client: &mut Client, due: Due) -> Result<Deleted, StoreError> {
    let before = due.rows_before;
    let first_kept = RequestId::first_at(before);
    if has_unfolded_before(&*client, first_kept).await? {
        return Ok(Deleted { more: true, ..Deleted::default() }); // rows are deleted only after they are in the sums
    }
    let mut deleted = drop_partitions_before(client, before.as_millis() / DAY_MILLIS).await?;
    // With a retention of more than 2 days, the rest of the oldest day stays until its partition is dropped.
    let among = if before.as_millis() + 2 * DAY_MILLIS < due.now.as_millis() { "_others" } else { "" };
    let old = format!(
        "DELETE FROM requests WHERE id IN (
             SELECT id FROM requests{among} WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)
         AND id NOT IN (SELECT unnest(requests) FROM unfolded) RETURNING id"
    );
    let rows = client.query_typed(&old, &typed(params![first_kept, PRUNE_BATCH_ROWS])).await?;
    for row in &rows {
        let at = sql::Row::Postgres(row).get::<RequestId>(0)?.timestamp();
        deleted.add(1, at, at);
    }
    deleted.more = rows.len() as i64 == PRUNE_BATCH_ROWS;
    let old = format!(
        "DELETE FROM commits WHERE id IN (
             SELECT id FROM commits{among} WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)"
    );
    let first = CommitId::first_at(before.as_millis().saturating_mul(1000)).number();
    client.execute_typed(&old, &typed(params![first, PRUNE_BATCH_ROWS])).await?;
    Ok(deleted)
}

/// Whether rows before `first` are not yet in the sums.
pub(crate) async fn has_unfolded_before(client: &impl GenericClient, first: RequestId) -> Result<bool, StoreError> {
    let find = "SELECT EXISTS (SELECT FROM unfolded CROSS JOIN unnest(requests) AS request WHERE request < $1)";
    Ok(client.query_typed_one(find, &typed(params![first])).await?.try_get(0)?)
}

/// Commits rows under this id; `None` if there are none.
async fn commit(
    session: &mut Session,
    commit: CommitId,
    slot: i64,
    rows: &[&QueuedRow],
) -> Result<Option<CommitId>, StoreError> {
    if rows.is_empty() {
        return Ok(None);
    }
    let permits = rows.iter().filter_map(|row| row.permit.as_ref());
    let reserved: Vec<Uuid> = permits.map(|permit| Uuid::from_bytes(permit.reservation().request.to_bytes())).collect();
    let columns = Columns::from_entries(rows.iter().map(|row| &row.entry));
    let number = commit.number();
    let parameters = columns.parameters(&number, &slot, &reserved);
    let insert = session.prepared(INSERT).await?;
    session.commit(async |client| client.execute(&insert, &parameters).await).await?;
    Ok(Some(commit))
}

/// A single statement, and so a transaction. Lists only rows that did not exist before, counts them against budgets, and
/// ends their reservations. The list is written even if it is empty: a commit that writes nothing does not wait for a
/// synchronous standby, which rows of an earlier attempt may not have reached.
const INSERT: &str = "WITH new AS (
        INSERT INTO requests (commit_id, id, key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
            queue_us, search_us, inference_us, total_us, score, scorer, sources, account, runtime, finish_reason,
            project)
        SELECT $1, * FROM unnest($2::uuid[], $3::text[], $4::smallint[], $5::text[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::real[], $14::integer[],
            $15::integer[], $16::text[], $21::text[], $22::text[], $23::text[])
        ON CONFLICT (id) DO NOTHING RETURNING id, key_id, account, status, total_tokens, inference_us
    ), counted AS (
        INSERT INTO spending AS sums (scope, period, start, slot, requests, tokens, unmeasured)
        SELECT scope, period, start, $19, count(*), coalesce(sum(total_tokens), 0),
            count(*) FILTER (WHERE total_tokens IS NULL)
        FROM new CROSS JOIN LATERAL (VALUES (key_id), ('@' || account), ('')) AS scopes (scope)
        JOIN unnest($2::uuid[], $17::bigint[], $18::bigint[]) AS starts (id, day, month) USING (id)
        CROSS JOIN LATERAL (VALUES ('day', day), ('month', month)) AS periods (period, start)
        WHERE (status = 200 OR status = 499 AND inference_us IS NOT NULL) AND EXISTS (
            SELECT FROM limits WHERE (limits.scope = scopes.scope OR limits.scope = '@' AND scopes.scope LIKE '@%')
                AND kind NOT IN ('requests-per-minute', 'requests-in-flight'))
        GROUP BY scope, period, start ORDER BY scope, period, start
        ON CONFLICT (scope, period, start, slot) DO UPDATE SET requests = sums.requests + excluded.requests,
            tokens = sums.tokens + excluded.tokens, unmeasured = sums.unmeasured + excluded.unmeasured
    ), released AS (
        DELETE FROM reservations WHERE request = ANY($20)
    )
    INSERT INTO unfolded (commit_id, requests) SELECT $1, coalesce(array_agg(id), '{}') FROM new";

/// Whether a retry on another connection may succeed: this one is closed, its server has become read-only, or the server
/// aborted the transaction because of others, or did not wait for its standby.
fn is_transient(error: &StoreError) -> bool {
    let error = match error {
        StoreError::Postgres(error) => error,
        other => return matches!(other, StoreError::Unconfirmed),
    };
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
                SqlState::UNIQUE_VIOLATION, // another replica's commit has the same id
            ];
            transient.contains(code) || code.code().starts_with("08")
        }
    }
}

/// Whether the server refuses the contents of a row.
fn is_row_error(error: &StoreError) -> bool {
    error.sql_state().is_some_and(|code| ["22", "23"].iter().any(|class| code.code().starts_with(class)))
}
