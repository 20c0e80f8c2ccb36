//! SQLite's part of folding: the ledger's writer folds between two commits, because a file has one writer at a time.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use chat::{KeyId, RequestId, Timestamp, TokenUsage};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};

use super::usage::key_id;
use crate::StoreError;
use crate::commit_id::CommitId;
use crate::fold::{Backlog, CommitTime, UnfoldedCommit, log_unreadable, take_ready};
use crate::id::AccountId;
use crate::latency::merge_encoded;
use crate::rollup::{Entry, KeySum, LedgerRow, PersonSumKey, Rollups};
use crate::usage::persist_us;

/// Rows per transaction: new rows wait while it runs.
const MAX_ROWS: usize = 1_024;
/// Rows that are kept in memory until they are folded.
const MAX_RECENT_ROWS: usize = 8 * MAX_ROWS;

/// Recently written rows of unfolded commits, so that this process need not read them again.
#[derive(Default)]
pub(super) struct RecentRows {
    rows: usize,
    by_commit: HashMap<CommitId, Vec<Entry>>,
}

impl RecentRows {
    /// Keeps a commit's rows, up to `MAX_RECENT_ROWS` in total.
    pub(super) fn keep(&mut self, commit: CommitId, rows: Vec<Entry>) {
        if self.rows + rows.len() <= MAX_RECENT_ROWS {
            self.rows += rows.len();
            self.by_commit.insert(commit, rows);
        }
    }

    fn forget(&mut self, commit: CommitId) {
        self.rows -= self.by_commit.remove(&commit).map_or(0, |rows| rows.len());
    }

    /// All rows of a commit, in the commit's order.
    fn rows(&self, commit: &UnfoldedCommit) -> Option<&[Entry]> {
        let rows = self.by_commit.get(&commit.id)?;
        rows.iter().map(|row| &row.request_id).eq(&commit.requests).then_some(rows)
    }
}

/// Stores when commits became durable, and adds rows to the sums and to the lists by key.
pub(super) fn fold(
    connection: &mut Connection,
    times: &[CommitTime],
    now_micros: u64,
    recent: &mut RecentRows,
) -> Result<Backlog, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut note = transaction
            .prepare_cached("INSERT INTO commits (id, persisted_at_us) VALUES (?1, ?2) ON CONFLICT DO NOTHING")?;
        for time in times {
            note.execute(params![time.commit.number(), time.persisted_at_micros])?;
        }
    }
    let (listed, mut unreadable) = unfolded(&transaction)?;
    let (ready, mut backlog) = take_ready(listed, now_micros, MAX_ROWS);
    let mut rollups = Rollups::new(given_keys(&transaction)?);
    let mut by_key = Vec::new();
    unreadable.extend(each_row(&transaction, &ready, recent, |row| {
        rollups.add(row);
        by_key.push((row.key, row.request_id));
    })?);
    for commit in &unreadable {
        for set_aside in [
            "INSERT INTO unreadable_commits SELECT commit_id, requests FROM unfolded WHERE commit_id = ?1",
            "DELETE FROM unfolded WHERE commit_id = ?1",
        ] {
            transaction.execute(set_aside, [commit.number()])?;
        }
    }
    backlog.unreadable = unreadable.len() as u64;
    write_rollups(&transaction, &rollups)?;
    by_key.sort_unstable();
    {
        let mut list =
            transaction.prepare_cached("INSERT INTO requests_of_keys VALUES (?1, ?2) ON CONFLICT DO NOTHING")?;
        for (key, request) in by_key {
            list.execute(params![key.as_str(), request.to_bytes()])?;
        }
    }
    {
        let mut done = transaction.prepare_cached("DELETE FROM unfolded WHERE commit_id = ?1")?;
        for commit in &ready {
            done.execute([commit.id.number()])?;
        }
    }
    transaction.commit()?;
    log_unreadable(&unreadable);
    ready.iter().for_each(|commit| recent.forget(commit.id));
    Ok(backlog)
}

/// The rows that are not yet in the sums.
pub(super) fn unfolded_sums(connection: &Connection) -> Result<Rollups, StoreError> {
    let mut rollups = Rollups::new(given_keys(connection)?);
    each_row(connection, &unfolded(connection)?.0, &RecentRows::default(), |row| rollups.add(row))?;
    Ok(rollups)
}

pub(super) fn given_keys(connection: &Connection) -> Result<HashSet<KeyId>, rusqlite::Error> {
    let mut list = connection.prepare_cached("SELECT key_id FROM given_keys")?;
    list.query_map([], |row| key_id(row, 0))?.collect()
}

/// The unfolded commits, the oldest first; and those whose list of rows cannot be read.
pub(super) fn unfolded(connection: &Connection) -> Result<(Vec<UnfoldedCommit>, Vec<CommitId>), StoreError> {
    let mut list = connection.prepare_cached(
        "SELECT commit_id, persisted_at_us, requests FROM unfolded LEFT JOIN commits ON commits.id = commit_id
         ORDER BY commit_id",
    )?;
    let mut rows = list.query([])?;
    let (mut commits, mut unreadable) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let id = CommitId::from_number(row.get(0)?);
        let (ids, rest) = row.get_ref(2)?.as_blob().unwrap_or(&[0]).as_chunks();
        if !rest.is_empty() {
            unreadable.push(id);
            continue;
        }
        commits.push(UnfoldedCommit {
            id,
            persisted_at_micros: row.get(1)?,
            requests: ids.iter().map(|&id| RequestId::from_bytes(id)).collect(),
        });
    }
    Ok((commits, unreadable))
}

/// The columns that `ledger_row` reads.
const LEDGER_ROW: &str = "key_id, account, status, code, prompt_tokens, completion_tokens, total_tokens, total_us,
    queue_us, search_us, inference_us";

/// Returns the commits with an unreadable row; none of their rows is taken.
fn each_row(
    connection: &Connection,
    commits: &[UnfoldedCommit],
    recent: &RecentRows,
    mut take: impl FnMut(&LedgerRow),
) -> Result<Vec<CommitId>, StoreError> {
    let mut find = connection.prepare_cached(&format!("SELECT {LEDGER_ROW} FROM requests WHERE id = ?1"))?;
    let mut unreadable = Vec::new();
    for commit in commits {
        if let Some(rows) = recent.rows(commit) {
            rows.iter().for_each(|row| take(&LedgerRow::new(row, commit.persisted_at_micros)));
            continue;
        }
        let mut read = |&request: &RequestId| {
            let mut rows = find.query([request.to_bytes()])?;
            let row = rows.next()?.ok_or(StoreError::Corrupt("commit"))?;
            ledger_row(row, request, commit.persisted_at_micros)
        };
        match commit.requests.iter().map(&mut read).collect::<Result<Vec<_>, _>>() {
            Ok(rows) => rows.iter().for_each(&mut take),
            Err(error) if error.is_unreadable() => unreadable.push(commit.id),
            Err(error) => return Err(error),
        }
    }
    Ok(unreadable)
}

/// Reads the rows of a range of seconds.
pub(super) fn rows_between(
    connection: &Connection,
    seconds: Range<u64>,
    mut take: impl FnMut(&LedgerRow),
) -> Result<(), StoreError> {
    let mut scan = connection.prepare_cached(&format!(
        "SELECT {LEDGER_ROW}, requests.id, persisted_at_us FROM requests LEFT JOIN commits ON commits.id = commit_id
         WHERE requests.id >= ?1 AND requests.id < ?2"
    ))?;
    let ids = [seconds.start, seconds.end].map(|at| RequestId::first_at(Timestamp::from_seconds(at)).to_bytes());
    let mut rows = scan.query(ids)?;
    while let Some(row) = rows.next()? {
        take(&ledger_row(row, RequestId::from_bytes(row.get(11)?), row.get(12)?)?);
    }
    Ok(())
}

fn ledger_row(row: &Row<'_>, request_id: RequestId, persisted_at: Option<u64>) -> Result<LedgerRow, StoreError> {
    let owner = row.get_ref(1)?.as_str_or_null().map_err(|_| StoreError::Corrupt("owner"))?;
    let code = row.get_ref(3)?.as_str_or_null().map_err(|_| StoreError::Corrupt("code"))?;
    let total_us = row.get(7)?;
    let persist = persisted_at.and_then(|at| persist_us(request_id, total_us, at));
    Ok(LedgerRow {
        request_id,
        key: key_id(row, 0)?,
        owner: owner.map(str::parse).transpose().map_err(|_| StoreError::Corrupt("owner"))?,
        status: row.get(2)?,
        code: code.unwrap_or_default().to_owned(),
        usage: TokenUsage { prompt: row.get(4)?, completion: row.get(5)?, total: row.get(6)? },
        micros: [Some(total_us), row.get(8)?, row.get(9)?, row.get(10)?, persist],
    })
}

/// Used by `write_rollups`.
pub(super) fn create_merge_function(connection: &Connection) -> Result<(), rusqlite::Error> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("merge_latencies", 2, flags, |values| {
        let merged = merge_encoded(values.get_raw(0).as_blob()?, values.get_raw(1).as_blob()?);
        merged.ok_or_else(|| rusqlite::Error::UserFunctionError("a roll-up's latencies are malformed".into()))
    })
}

/// The part that all three statements share.
const ADD_FIGURES: &str = "requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    prompt_measured = prompt_measured + excluded.prompt_measured,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    completion_measured = completion_measured + excluded.completion_measured,
    total_tokens = total_tokens + excluded.total_tokens,
    total_measured = total_measured + excluded.total_measured,
    last_at = max(last_at, excluded.last_at)";

fn write_rollups(transaction: &Transaction<'_>, rollups: &Rollups) -> Result<(), rusqlite::Error> {
    let mut upsert = transaction.prepare_cached(&format!(
        "INSERT INTO rollups VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT DO UPDATE SET
             {ADD_FIGURES},
             latencies = merge_latencies(latencies, excluded.latencies)",
    ))?;
    for (key, figures, latencies) in rollups.hours() {
        upsert.execute(params![
            key.scope.to_string(),
            key.start,
            key.status,
            key.code,
            figures.requests,
            figures.prompt.sum,
            figures.prompt.count,
            figures.completion.sum,
            figures.completion.count,
            figures.total.sum,
            figures.total.count,
            figures.last_at.as_millis(),
            latencies.encode(),
        ])?;
    }
    let mut upsert = transaction.prepare_cached(&format!(
        "INSERT INTO key_sums VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
         ON CONFLICT DO UPDATE SET
             {ADD_FIGURES},
             succeeded = succeeded + excluded.succeeded",
    ))?;
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
            figures.last_at.as_millis(),
            succeeded,
        ])?;
    }
    let mut upsert = transaction.prepare_cached(&format!(
        "INSERT INTO person_sums VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT DO UPDATE SET
             {ADD_FIGURES},
             succeeded = succeeded + excluded.succeeded",
    ))?;
    for (PersonSumKey { of_key, person }, KeySum { figures, succeeded }) in rollups.people() {
        upsert.execute(params![
            of_key.span.seconds(),
            of_key.start,
            of_key.key.as_str(),
            person.as_ref().map_or("", AccountId::as_str),
            figures.requests,
            figures.prompt.sum,
            figures.prompt.count,
            figures.completion.sum,
            figures.completion.count,
            figures.total.sum,
            figures.total.count,
            figures.last_at.as_millis(),
            succeeded,
        ])?;
    }
    let mut used = transaction.prepare_cached(
        "UPDATE keys SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)",
    )?;
    for (key, last_use) in rollups.last_uses() {
        used.execute(params![key.as_str(), last_use.as_millis()])?;
    }
    Ok(())
}
