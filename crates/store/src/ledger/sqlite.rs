//! SQLite's part of the ledger: one transaction per group of rows.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use chat::{FinishReason, RequestId, Timestamp};
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Statement, TransactionBehavior, ffi, params, params_from_iter,
};

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::database::snapshot::Snapshot;
use crate::database::sqlite::log::settle;
use crate::database::sqlite::pool::{Pool, numbered, ready};
use crate::database::sqlite::{connect, log, write};
use crate::ledger::fold::{Backlog, CommitTime};
use crate::ledger::pruning::{ClockReading, Deleted, Due};
use crate::ledger::queue::QueuedRow;
use crate::ledger::sqlite_fold::{RecentRows, create_merge_function, fold};
use crate::ledger::writer::{Committed, LedgerBackend};
use crate::limits::sqlite::CountedScopes;
use crate::usage::commit_id::CommitId;
use crate::usage::rollup::Entry;
use crate::usage::unfolded::unfolded;
use crate::values::Project;

/// The number of commits between two checks of the log's length.
const COMMITS_PER_CHECK: u32 = 16;
/// How long the ledger waits until this process's other connections are closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// More than any usual group of rows.
const PROBE_BYTES: i64 = 256 * 1024;
const PRUNE_BATCH_ROWS: u64 = 500;

pub(crate) struct SqliteLedger {
    pool: Arc<Pool>,
    clock: Arc<StoreClock>,
    /// `None` at the start, and after a failed fsync or a panic: that connection cannot be trusted. The next call opens
    /// another.
    connection: Option<Connection>,
    recent: RecentRows,
    counted: CountedScopes,
    /// Whether a connection was lost, so that the log must be settled before the next write.
    must_settle: bool,
    commits_since_check: u32,
    /// Whether the last checkpoint failed.
    is_log_stuck: bool,
}

impl SqliteLedger {
    /// The first call opens the file.
    pub(crate) fn new(pool: Arc<Pool>, clock: Arc<StoreClock>) -> Self {
        Self {
            pool,
            clock,
            connection: None,
            recent: RecentRows::default(),
            counted: CountedScopes::default(),
            must_settle: false,
            commits_since_check: 0,
            is_log_stuck: false,
        }
    }

    /// Runs `run` on the connection, and opens one first if there is none.
    fn with<T>(&mut self, run: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let result = match &mut self.connection {
            Some(connection) => run(connection),
            None => {
                let opened = match self.must_settle {
                    true => reopen(&self.pool),
                    false => connect(self.pool.path()).and_then(prepare),
                };
                opened.and_then(|opened| {
                    self.must_settle = false;
                    run(self.connection.insert(opened))
                })
            }
        };
        result.inspect_err(|error| {
            if is_connection_lost(error) {
                self.disconnect();
            }
        })
    }

    /// Moves a long log into the file. A failure does not affect the rows, which are durable; the next call recovers.
    fn keep_log_short(&mut self) {
        let Some(connection) = &self.connection else { return };
        self.commits_since_check = 0;
        let moved = log::checkpoint_if_long(connection);
        let was_stuck = std::mem::replace(&mut self.is_log_stuck, moved.is_err());
        if let Err(error) = moved {
            if !was_stuck {
                tracing::warn!(%error, "the checkpoint failed, and the write-ahead log grows");
            }
            if is_connection_lost(&error.into()) {
                self.disconnect();
            }
        }
    }
}

impl LedgerBackend for SqliteLedger {
    fn commit(&mut self, group: &[QueuedRow]) -> Result<Committed, StoreError> {
        let commit_id = CommitId::new(self.clock.now_micros());
        let mut counted = std::mem::take(&mut self.counted);
        let (committed, rows) = self.with(|connection| commit(connection, group, commit_id, &mut counted))?;
        self.counted = counted;
        self.recent.keep(commit_id, rows);
        self.commits_since_check += 1;
        if self.commits_since_check >= COMMITS_PER_CHECK {
            self.keep_log_short();
        }
        Ok(committed)
    }

    fn fold(&mut self, times: &[CommitTime]) -> Result<Option<Backlog>, StoreError> {
        let now_micros = self.clock.now_micros();
        let mut recent = std::mem::take(&mut self.recent); // after a failure, they are read from the database
        let folded = self.with(|connection| fold(connection, times, now_micros, &mut recent));
        let backlog = folded.inspect_err(|_| self.disconnect())?;
        self.recent = recent;
        Ok(Some(backlog))
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        self.with(|connection| {
            connection.execute(
                "INSERT INTO probe (id, filler) VALUES (1, randomblob(?1))
                 ON CONFLICT DO UPDATE SET filler = excluded.filler",
                [PROBE_BYTES],
            )?;
            Ok(())
        })
    }

    fn read_clock(&mut self) -> Result<ClockReading, StoreError> {
        self.with(|connection| Ok(read_clock(connection)?))
    }

    fn store_time(&mut self, before: Option<Timestamp>, time: Timestamp) -> Result<(), StoreError> {
        self.with(|connection| {
            let store = "INSERT INTO retention_clock (id, time) VALUES (1, ?2)
                ON CONFLICT DO UPDATE SET time = excluded.time WHERE time = ?1";
            connection.execute(store, params![before.map(Timestamp::as_millis), time.as_millis()])?;
            Ok(())
        })
    }

    fn delete_ended(&mut self, due: Due) -> Result<(), StoreError> {
        self.with(|connection| {
            for (delete, times) in due.ended() {
                connection.execute(&numbered(delete), params_from_iter(times.into_iter().map(Timestamp::as_millis)))?;
            }
            Ok(())
        })
    }

    fn prune(&mut self, due: Due) -> Result<Deleted, StoreError> {
        let deleted = self.with(|connection| prune(connection, due))?;
        self.keep_log_short();
        Ok(deleted)
    }

    fn disconnect(&mut self) {
        self.must_settle |= self.connection.take().is_some();
    }

    fn close(&mut self) {
        if let Some(connection) = self.connection.take()
            && let Err(error) = log::empty(&connection)
        {
            tracing::warn!(%error, "the checkpoint failed; the next start repeats it");
        }
    }
}

/// Opens the file after a failed fsync: all connections are closed, then the log is settled. Until this succeeds, no
/// caller in this process gets a connection.
fn reopen(pool: &Pool) -> Result<Connection, StoreError> {
    if !pool.suspend(CLOSE_TIMEOUT) {
        return Err(StoreError::LogInUse);
    }
    let connection = connect(pool.path())?;
    if !settle(&connection)? {
        return Err(StoreError::LogInUse);
    }
    let connection = prepare(connection)?;
    pool.resume(connect(pool.path())?);
    Ok(connection)
}

fn prepare(connection: Connection) -> Result<Connection, StoreError> {
    connection.set_prepared_statement_cache_capacity(32);
    create_merge_function(&connection)?;
    Ok(connection)
}

/// Also returns the rows that were recorded.
fn commit(
    connection: &mut Connection,
    group: &[QueuedRow],
    commit: CommitId,
    counted: &mut CountedScopes,
) -> Result<(Committed, Vec<Entry>), StoreError> {
    let mut committed = Committed { commit: None, refused: Vec::new() };
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut recorded = Vec::with_capacity(group.len());
    {
        let mut insert = transaction.prepare_cached(INSERT)?;
        for (at, row) in group.iter().enumerate() {
            match insert_row(&mut insert, &row.entry, commit) {
                Ok(true) => recorded.push(row.entry.clone()),
                Ok(false) => {} // recorded before: counted once
                Err(error) if is_row_error(&error) => committed.refused.push(at),
                Err(other) => return Err(other.into()),
            }
        }
        if !recorded.is_empty() {
            let ids: Vec<u8> = recorded.iter().flat_map(|row| row.request_id.to_bytes()).collect();
            transaction.prepare_cached(LIST_UNFOLDED)?.execute(params![commit.number(), ids])?;
            counted.count(&transaction, &recorded)?;
            committed.commit = Some(commit);
        }
    }
    transaction.commit()?;
    Ok((committed, recorded))
}

fn read_clock(connection: &Connection) -> Result<ClockReading, rusqlite::Error> {
    let millis = |row: &rusqlite::Row<'_>| Ok(Timestamp::from_millis(row.get(0)?));
    let stored = connection.query_row("SELECT time FROM retention_clock", [], millis).optional()?;
    let newest_row = match stored {
        Some(_) => None,
        None => connection.query_row("SELECT max(id) FROM requests", [], |row| row.get::<_, Option<[u8; 16]>>(0))?,
    };
    let newest_row = newest_row.map(|id| RequestId::from_bytes(id).timestamp());
    Ok(ClockReading { clock: SystemTime::now().into(), stored, newest_row })
}

fn prune(connection: &mut Connection, due: Due) -> Result<Deleted, StoreError> {
    write(connection, |connection| prune_once(connection, due))
}

fn prune_once(connection: &mut Connection, due: Due) -> Result<Deleted, StoreError> {
    let mut deleted = Deleted::default();
    let first_kept = RequestId::first_at(due.rows_before);
    let (commits, _) = ready(unfolded(&mut Snapshot::Sqlite(connection)))?;
    if commits.iter().flat_map(|commit| &commit.requests).any(|request| *request < first_kept) {
        return Ok(Deleted { more: true, ..deleted }); // rows are deleted only after they are in the sums
    }
    let batch = connection
        .prepare_cached(
            "SELECT count(*), min(id), max(id) FROM (SELECT id FROM requests WHERE id < ?1 ORDER BY id LIMIT ?2)",
        )?
        .query_row(params![first_kept.to_bytes(), PRUNE_BATCH_ROWS], |row| {
            Ok((row.get::<_, u64>(0)?, row.get::<_, Option<[u8; 16]>>(1)?, row.get::<_, Option<[u8; 16]>>(2)?))
        })?;
    if let (rows, Some(oldest), Some(newest)) = batch {
        connection.prepare_cached(DELETE_FROM_LISTS)?.execute([newest])?;
        connection.prepare_cached("DELETE FROM requests WHERE id <= ?1")?.execute([newest])?;
        let [oldest, newest] = [oldest, newest].map(|id| RequestId::from_bytes(id).timestamp());
        deleted.add(rows, oldest, newest);
        deleted.more = rows == PRUNE_BATCH_ROWS;
    }
    let first_kept = CommitId::first_at(due.rows_before.as_millis().saturating_mul(1000)).number();
    let commits = connection
        .prepare_cached("DELETE FROM commits WHERE id IN (SELECT id FROM commits WHERE id < ?1 ORDER BY id LIMIT ?2)")?
        .execute(params![first_kept, PRUNE_BATCH_ROWS])?;
    deleted.more |= commits as u64 == PRUNE_BATCH_ROWS;
    Ok(deleted)
}

/// Whether only this row failed, so that the transaction can continue.
fn is_row_error(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(error, rusqlite::Error::ToSqlConversionFailure(_))
        || matches!(code, Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig))
}

const INSERT: &str = "INSERT INTO requests (id, key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
        queue_us, search_us, inference_us, total_us, commit_id, score, scorer, sources, account, runtime, finish_reason,
        project)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
    ON CONFLICT (id) DO NOTHING";

/// By party, because SQLite scans the whole table for pairs that come from a compound select.
const DELETE_FROM_LISTS: &str = "DELETE FROM requests_of_parties WHERE id <= ?1 AND party IN (
        SELECT key_id FROM requests WHERE id <= ?1
        UNION SELECT '@' || account FROM requests WHERE id <= ?1 AND account IS NOT NULL)";

const LIST_UNFOLDED: &str = "INSERT INTO unfolded (commit_id, requests) VALUES (?1, ?2)";

/// `false` if the request was recorded before.
fn insert_row(insert: &mut Statement<'_>, entry: &Entry, commit: CommitId) -> Result<bool, rusqlite::Error> {
    let micros = |time: Duration| time.as_micros() as u64;
    let inserted = insert.execute(params![
        entry.request_id.to_bytes(),
        entry.key.as_str(),
        entry.outcome.status,
        entry.outcome.code,
        entry.usage.prompt,
        entry.usage.completion,
        entry.usage.total,
        entry.timings.queue.map(micros),
        entry.timings.search.map(micros),
        entry.timings.inference.map(micros),
        micros(entry.timings.total),
        commit.number(),
        entry.grounding.map(|grounding| grounding.score),
        entry.grounding.map(|grounding| grounding.scorer),
        entry.grounding.and_then(|grounding| grounding.sources),
        entry.owner.map(|owner| owner.to_string()),
        entry.inference.runtime.as_deref(),
        entry.inference.finish_reason.map(FinishReason::as_str),
        entry.project.as_ref().map(Project::as_str),
    ])?;
    Ok(inserted == 1)
}

/// After a failed fsync the contents of the disk are unknown, so the connection must not be used again.
fn is_connection_lost(error: &StoreError) -> bool {
    let StoreError::Sqlite(error) = error else { return true };
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC | ffi::SQLITE_IOERR_TRUNCATE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::sqlite::Sqlite;
    use crate::usage::rollup::{Outcome, Timings};

    /// The writer must not be busy for long, however many rows are kept.
    #[test]
    fn pruning_scans_only_what_it_deletes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.db");
        let _database = Sqlite::open(path.clone()).unwrap();
        let connection = Connection::open(path).unwrap();
        for statement in [DELETE_FROM_LISTS, "DELETE FROM requests WHERE id <= ?1"] {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
            let steps = plan.query_map([[0_u8; 16]], |row| row.get::<_, String>(3)).unwrap();
            let steps: Vec<_> = steps.map(Result::unwrap).collect();
            assert!(steps.iter().any(|step| step.starts_with("SEARCH")), "{steps:?}");
            assert!(!steps.iter().any(|step| step.starts_with("SCAN requests")), "{steps:?}");
        }
    }

    /// After a failed fsync, the next row may come before a probe, and then has to reopen the ledger.
    #[test]
    fn a_discarded_connection_is_reopened_by_the_next_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.db");
        let database = Sqlite::open(path).unwrap();
        let entry = Entry {
            request_id: RequestId::now(),
            key: "000000000001".parse().unwrap(),
            owner: None,
            project: None,
            outcome: Outcome { status: 200, code: None },
            usage: Default::default(),
            timings: Timings::default(),
            grounding: None,
            inference: Default::default(),
        };
        let clock = Arc::new(StoreClock::this_machine());
        let mut backend = SqliteLedger { must_settle: true, ..SqliteLedger::new(database.pool().clone(), clock) };
        let committed = backend.commit(&[QueuedRow::new(entry)]).unwrap();
        assert!(committed.commit.is_some() && committed.refused.is_empty());
        assert!(backend.connection.is_some());
    }
}
