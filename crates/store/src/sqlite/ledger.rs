//! The ledger's own connection: one transaction for a group of rows and all their roll-ups.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chat::RequestId;
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, ErrorCode, Statement, Transaction, TransactionBehavior, ffi, params};

use super::connect;
use crate::latency::merge_encoded;
use crate::ledger::{Pending, Trail};
use crate::rollup::{Entry, KeySum, Rollups, Span};

/// Pages of write-ahead log after which it is moved into the database file (16 MiB).
const CHECKPOINT_PAGES: i64 = 4096;
/// What a probe writes: more than any usual group of rows.
const PROBE_BYTES: i64 = 256 * 1024;
/// Rows deleted in one transaction.
const PRUNE_ROWS: usize = 500;

pub(crate) struct LedgerFile {
    connection: Connection,
    path: PathBuf,
}

/// A transaction that was committed.
pub(crate) struct Committed {
    /// Its number.
    pub(crate) commit: i64,
    /// The places in the group of rows that the database refused.
    pub(crate) refused: Vec<usize>,
}

impl LedgerFile {
    pub(super) fn new(connection: Connection, path: PathBuf) -> Result<Self, rusqlite::Error> {
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.set_prepared_statement_cache_capacity(32);
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        connection.create_scalar_function("merge_latencies", 2, flags, |values| {
            let merged = merge_encoded(values.get_raw(0).as_blob()?, values.get_raw(1).as_blob()?);
            merged.ok_or_else(|| rusqlite::Error::UserFunctionError("a roll-up's latencies do not read back".into()))
        })?;
        Ok(Self { connection, path })
    }

    /// Commits a group of rows, their roll-ups, and what became known of the last commit. All or nothing, except that a
    /// row which the database refuses for itself does not fail its neighbours.
    pub(crate) fn commit(&mut self, group: &[Pending], trail: Option<Trail>) -> Result<Committed, CommitFailed> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut rollups = Rollups::default();
        if let Some(trail) = trail {
            let mut note = transaction.prepare_cached("UPDATE commits SET persisted_at_us = ?2 WHERE id = ?1")?;
            note.execute(params![trail.commit, trail.persisted_at_micros])?;
            rollups = trail.rollups;
        }
        let mut committed = Committed { commit: 0, refused: Vec::new() };
        if !group.is_empty() {
            transaction.prepare_cached("INSERT INTO commits DEFAULT VALUES")?.execute([])?;
            committed.commit = transaction.last_insert_rowid();
            let mut insert = transaction.prepare_cached(INSERT)?;
            for (at, pending) in group.iter().enumerate() {
                match insert_row(&mut insert, &pending.entry, committed.commit) {
                    Ok(true) => rollups.add(&pending.entry),
                    Ok(false) => {} // recorded before: counted once
                    Err(error) if is_the_rows_own_fault(&error) => committed.refused.push(at),
                    Err(other) => return Err(other.into()),
                }
            }
        }
        write_rollups(&transaction, &rollups)?;
        transaction.commit()?;
        Ok(committed)
    }

    /// Writes in earnest, to find out whether writing works.
    pub(crate) fn probe(&mut self) -> Result<(), CommitFailed> {
        self.connection.execute(
            "INSERT INTO probe (id, filler) VALUES (1, randomblob(?1)) ON CONFLICT DO UPDATE SET filler = excluded.filler",
            [PROBE_BYTES],
        )?;
        Ok(())
    }

    /// Deletes some of the rows before that id; `true` if there may be more.
    pub(crate) fn prune(&mut self, before: RequestId) -> Result<bool, CommitFailed> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let deleted = transaction
            .prepare_cached(
                "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE id < ?1 ORDER BY id LIMIT ?2)",
            )?
            .execute(params![before.to_bytes(), PRUNE_ROWS])?;
        transaction
            .prepare_cached(
                "DELETE FROM commits WHERE id IN (SELECT id FROM commits ORDER BY id LIMIT ?1)
                 AND persisted_at_us < ?2",
            )?
            .execute(params![PRUNE_ROWS, before.unix_micros()])?;
        transaction.commit()?;
        Ok(deleted == PRUNE_ROWS)
    }

    /// Opens the ledger again after a failed fsync. What the file shows may not all be on the disk: the whole log is moved
    /// into the database file, with its own fsyncs, before anything is written behind it.
    pub(crate) fn reopen(path: &Path) -> Result<Self, CommitFailed> {
        let file = Self::new(connect(path)?, path.to_owned())?;
        let blocked: i64 = file.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if blocked == 0 { Ok(file) } else { Err(CommitFailed::checkpoint_blocked()) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether another row could still go into the same transaction.
fn is_the_rows_own_fault(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(error, rusqlite::Error::ToSqlConversionFailure(_))
        || matches!(code, Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig))
}

const INSERT: &str = "INSERT INTO requests (id, key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
        queue_us, search_us, inference_us, total_us, commit_id, score, scorer, sources)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT (id) DO NOTHING";

/// Inserts a row; `false` if the request was recorded before.
fn insert_row(insert: &mut Statement<'_>, entry: &Entry, commit: i64) -> Result<bool, rusqlite::Error> {
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
        commit,
        entry.grounding.map(|grounding| grounding.score),
        entry.grounding.map(|grounding| grounding.scorer),
        entry.grounding.and_then(|grounding| grounding.sources),
    ])?;
    Ok(inserted == 1)
}

fn write_rollups(transaction: &Transaction<'_>, rollups: &Rollups) -> Result<(), rusqlite::Error> {
    let mut upsert = transaction.prepare_cached(
        "INSERT INTO rollups VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT DO UPDATE SET
             requests = requests + excluded.requests,
             prompt_tokens = prompt_tokens + excluded.prompt_tokens,
             prompt_measured = prompt_measured + excluded.prompt_measured,
             completion_tokens = completion_tokens + excluded.completion_tokens,
             completion_measured = completion_measured + excluded.completion_measured,
             total_tokens = total_tokens + excluded.total_tokens,
             total_measured = total_measured + excluded.total_measured,
             last_at = max(last_at, excluded.last_at),
             latencies = merge_latencies(latencies, excluded.latencies)",
    )?;
    for (key, figures, latencies) in rollups.hours() {
        upsert.execute(params![
            Span::Hour.seconds(),
            key.party.to_string(),
            key.start,
            key.outcome.status,
            key.outcome.code.unwrap_or(""),
            figures.requests,
            figures.prompt.sum,
            figures.prompt.count,
            figures.completion.sum,
            figures.completion.count,
            figures.total.sum,
            figures.total.count,
            figures.last_at,
            latencies.encode(),
        ])?;
    }
    let mut upsert = transaction.prepare_cached(
        "INSERT INTO key_sums VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
         ON CONFLICT DO UPDATE SET
             requests = requests + excluded.requests,
             prompt_tokens = prompt_tokens + excluded.prompt_tokens,
             prompt_measured = prompt_measured + excluded.prompt_measured,
             completion_tokens = completion_tokens + excluded.completion_tokens,
             completion_measured = completion_measured + excluded.completion_measured,
             total_tokens = total_tokens + excluded.total_tokens,
             total_measured = total_measured + excluded.total_measured,
             last_at = max(last_at, excluded.last_at),
             succeeded = succeeded + excluded.succeeded",
    )?;
    for (key, KeySum { figures, succeeded }) in rollups.sums() {
        upsert.execute(params![
            key.span.seconds(),
            key.start,
            key.key.as_str(),
            figures.requests,
            figures.prompt.sum,
            figures.prompt.count,
            figures.completion.sum,
            figures.completion.count,
            figures.total.sum,
            figures.total.count,
            figures.last_at,
            succeeded,
        ])?;
    }
    let mut used = transaction.prepare_cached(
        "UPDATE keys SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)",
    )?;
    for (key, sum) in rollups.sums().filter(|(key, _)| key.span == Span::Block) {
        used.execute(params![key.key.as_str(), sum.figures.last_at])?;
    }
    Ok(())
}

/// Why nothing of a group was committed.
#[derive(Debug)]
pub(crate) struct CommitFailed(Option<rusqlite::Error>);

impl CommitFailed {
    /// Another process keeps the log from being moved into the database file.
    fn checkpoint_blocked() -> Self {
        Self(None)
    }

    /// After a failed fsync nobody knows what is on the disk; the same connection must not go on as if it did.
    pub(crate) fn connection_is_lost(&self) -> bool {
        let code = self.0.as_ref().and_then(rusqlite::Error::sqlite_error).map(|error| error.extended_code);
        matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC | ffi::SQLITE_IOERR_TRUNCATE))
    }
}

impl From<rusqlite::Error> for CommitFailed {
    fn from(error: rusqlite::Error) -> Self {
        Self(Some(error))
    }
}

impl fmt::Display for CommitFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(error) => error.fmt(f),
            None => f.write_str("the log cannot be moved into the database file yet"),
        }
    }
}
