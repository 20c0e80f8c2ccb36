//! SQLite's part of folding: the ledger's writer folds between two commits, because a file has one writer at a time.

use std::collections::HashMap;

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, params};

use crate::StoreError;
use crate::database::snapshot::Snapshot;
use crate::database::sqlite::pool::ready;
use crate::database::sqlite::write;
use crate::ledger::fold::{Backlog, CommitTime, log_unreadable, take_ready};
use crate::usage::commit_id::CommitId;
use crate::usage::latency::merge_encoded;
use crate::usage::rollup::{Entry, KeySum, LedgerRow, Rollups};
use crate::usage::unfolded::{UnfoldedCommit, each_row, unfolded};
use crate::values::{AccountId, Project, Scope};

/// Rows per transaction: new rows wait while it runs.
const MAX_ROWS: usize = 1_024;
/// Rows that are kept in memory until they are folded.
const MAX_RECENT_ROWS: usize = 8 * MAX_ROWS;

/// Recently written rows of unfolded commits, so that this process need not read them again.
#[derive(Default)]
pub(crate) struct RecentRows {
    rows: usize,
    by_commit: HashMap<CommitId, Vec<Entry>>,
}

impl RecentRows {
    /// Keeps a commit's rows, up to `MAX_RECENT_ROWS` in total.
    pub(crate) fn keep(&mut self, commit: CommitId, rows: Vec<Entry>) {
        if self.rows + rows.len() <= MAX_RECENT_ROWS {
            self.rows += rows.len();
            self.by_commit.insert(commit, rows);
        }
    }

    fn forget(&mut self, commit: CommitId) {
        self.rows -= self.by_commit.remove(&commit).map_or(0, |rows| rows.len());
    }

    /// All rows of a commit, in the commit's order.
    fn rows(&self, commit: &UnfoldedCommit) -> Option<impl Iterator<Item = LedgerRow>> {
        let rows = self.by_commit.get(&commit.id)?;
        let is_same = rows.iter().map(|row| &row.request_id).eq(&commit.requests);
        is_same.then(|| rows.iter().map(|row| LedgerRow::new(row, commit.persisted_at_micros)))
    }
}

/// Stores when commits became durable, and adds rows to the sums and to the lists by key and person.
pub(crate) fn fold(
    connection: &mut Connection,
    times: &[CommitTime],
    now_micros: u64,
    recent: &mut RecentRows,
) -> Result<Backlog, StoreError> {
    let (folded, unreadable, backlog) = write(connection, |transaction| {
        {
            let mut note = transaction
                .prepare_cached("INSERT INTO commits (id, persisted_at_us) VALUES (?1, ?2) ON CONFLICT DO NOTHING")?;
            for time in times {
                note.execute(params![time.commit.number(), time.persisted_at_micros])?;
            }
        }
        let (listed, mut unreadable) = ready(unfolded(&mut Snapshot::Sqlite(transaction)))?;
        let (folded, mut backlog) = take_ready(listed, now_micros, MAX_ROWS);
        let mut rollups = Rollups::default();
        let mut by_party = Vec::new();
        let mut add = |row: LedgerRow| {
            rollups.add(&row);
            by_party.push((Scope::Key(row.key), row.request_id));
            by_party.extend(row.owner.map(|owner| (Scope::Owner(owner), row.request_id)));
        };
        for commit in &folded {
            match recent.rows(commit) {
                Some(rows) => rows.for_each(&mut add),
                None => {
                    let commit = std::slice::from_ref(commit);
                    unreadable.extend(ready(each_row(&mut Snapshot::Sqlite(transaction), commit, &mut add))?);
                }
            }
        }
        for commit in &unreadable {
            for set_aside in [
                "INSERT INTO unreadable_commits SELECT commit_id, requests FROM unfolded WHERE commit_id = ?1",
                "DELETE FROM unfolded WHERE commit_id = ?1",
            ] {
                transaction.execute(set_aside, [commit.number()])?;
            }
        }
        backlog.unreadable = unreadable.len() as u64;
        write_rollups(transaction, &rollups)?;
        by_party.sort_unstable();
        let mut list =
            transaction.prepare_cached("INSERT INTO requests_of_parties VALUES (?1, ?2) ON CONFLICT DO NOTHING")?;
        for (party, request) in by_party {
            list.execute(params![party.to_string(), request.to_bytes()])?;
        }
        let mut done = transaction.prepare_cached("DELETE FROM unfolded WHERE commit_id = ?1")?;
        for commit in &folded {
            done.execute([commit.id.number()])?;
        }
        Ok::<_, StoreError>((folded, unreadable, backlog))
    })?;
    log_unreadable(&unreadable);
    folded.iter().for_each(|commit| recent.forget(commit.id));
    Ok(backlog)
}

/// Used by `write_rollups`.
pub(crate) fn create_merge_function(connection: &Connection) -> Result<(), rusqlite::Error> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("merge_latencies", 2, flags, |values| {
        let merged = merge_encoded(values.get_raw(0).as_blob()?, values.get_raw(1).as_blob()?);
        merged.ok_or_else(|| rusqlite::Error::UserFunctionError("a roll-up's latencies are malformed".into()))
    })
}

/// The part that both statements share.
const ADD_FIGURES: &str = "requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    prompt_measured = prompt_measured + excluded.prompt_measured,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    completion_measured = completion_measured + excluded.completion_measured,
    total_tokens = total_tokens + excluded.total_tokens,
    total_measured = total_measured + excluded.total_measured";

fn write_rollups(connection: &Connection, rollups: &Rollups) -> Result<(), rusqlite::Error> {
    let mut upsert = connection.prepare_cached(&format!(
        "INSERT INTO rollups VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT DO UPDATE SET
             {ADD_FIGURES},
             last_at = max(last_at, excluded.last_at),
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
            key.owner.as_ref().map_or("", AccountId::as_str),
        ])?;
    }
    let mut upsert = connection.prepare_cached(&format!(
        "INSERT INTO sums VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT DO UPDATE SET
             {ADD_FIGURES},
             succeeded = succeeded + excluded.succeeded",
    ))?;
    for (key, KeySum { figures, succeeded }) in rollups.sums() {
        upsert.execute(params![
            key.span.seconds(),
            key.start,
            key.part.key.as_str(),
            key.part.owner.as_ref().map_or("", AccountId::as_str),
            key.part.project.as_ref().map_or("", Project::as_str),
            figures.requests,
            figures.prompt.sum,
            figures.prompt.count,
            figures.completion.sum,
            figures.completion.count,
            figures.total.sum,
            figures.total.count,
            succeeded,
        ])?;
    }
    let mut used = connection.prepare_cached(
        "UPDATE keys SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)",
    )?;
    for (key, last_use) in rollups.last_uses() {
        used.execute(params![key.as_str(), last_use.as_millis()])?;
    }
    Ok(())
}
