//! Reads rows of the ledger as folding and reports need them: those of unfolded commits, and those of a range of time.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use chat::{RequestId, Timestamp, TokenUsage};

use crate::StoreError;
use crate::database::snapshot::Snapshot;
use crate::database::sql::{Row, params};
use crate::usage::commit_id::CommitId;
use crate::usage::query::persist_us;
use crate::usage::rollup::{LedgerRow, Rollups};

/// A commit without timings is folded after this time: the process that made it is gone, or its clock was wrong.
const TIMINGS_PATIENCE: Duration = Duration::from_secs(5);

/// A commit whose rows are not yet in the sums.
#[derive(Debug)]
pub(crate) struct UnfoldedCommit {
    pub(crate) id: CommitId,
    pub(crate) persisted_at_micros: Option<u64>,
    pub(crate) requests: Vec<RequestId>,
}

impl UnfoldedCommit {
    /// Whether it has its timings, or need no longer wait for them.
    pub(crate) fn is_ready(&self, now_micros: u64) -> bool {
        self.persisted_at_micros.is_some()
            || self.id.micros().abs_diff(now_micros) > TIMINGS_PATIENCE.as_micros() as u64
    }
}

/// Rows that are read at a time: if folding lags, there may be millions.
const BATCH_ROWS: usize = 8_192;

/// The unfolded commits, the oldest first; and those whose list of rows cannot be read.
pub(crate) async fn unfolded(snapshot: &mut Snapshot<'_>) -> Result<(Vec<UnfoldedCommit>, Vec<CommitId>), StoreError> {
    let list = "SELECT commit_id, persisted_at_us, requests FROM unfolded LEFT JOIN commits ON commits.id = commit_id
        ORDER BY commit_id";
    let (mut commits, mut unreadable) = (Vec::new(), Vec::new());
    let take = |row: &Row<'_>| {
        let id = CommitId::from_number(row.get(0)?);
        match row.get(2) {
            Ok(requests) => {
                commits.push(UnfoldedCommit { id, persisted_at_micros: row.get_optional(1)?, requests });
            }
            Err(_) => unreadable.push(id),
        }
        Ok(())
    };
    snapshot.each(list, &[], take).await?;
    Ok((commits, unreadable))
}

/// The rows that are not yet in the sums.
pub(crate) async fn unfolded_sums(snapshot: &mut Snapshot<'_>) -> Result<Rollups, StoreError> {
    let mut rollups = Rollups::default();
    let (commits, _) = unfolded(snapshot).await?;
    each_row(snapshot, &commits, |row| rollups.add(&row)).await?;
    Ok(rollups)
}

/// Returns the commits with an unreadable row; none of their rows is taken.
pub(crate) async fn each_row(
    snapshot: &mut Snapshot<'_>,
    commits: &[UnfoldedCommit],
    mut take: impl FnMut(LedgerRow),
) -> Result<Vec<CommitId>, StoreError> {
    let (mut rest, mut unreadable) = (commits, Vec::new());
    while !rest.is_empty() {
        let mut rows = 0;
        let fits = |commit: &&UnfoldedCommit| {
            rows += commit.requests.len();
            rows <= BATCH_ROWS
        };
        let (batch, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        rest = others;
        match rows_of(snapshot, batch).await {
            Ok(rows) => rows.into_iter().for_each(&mut take),
            // Which commit it is, is found by reading them one by one.
            Err(error) if error.is_unreadable() => {
                for commit in batch {
                    match rows_of(snapshot, std::slice::from_ref(commit)).await {
                        Ok(rows) => rows.into_iter().for_each(&mut take),
                        Err(error) if error.is_unreadable() => unreadable.push(commit.id),
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(unreadable)
}

async fn rows_of(snapshot: &mut Snapshot<'_>, commits: &[UnfoldedCommit]) -> Result<Vec<LedgerRow>, StoreError> {
    let persisted: HashMap<_, _> =
        commits.iter().map(|commit| (commit.id.number(), commit.persisted_at_micros)).collect();
    let ids: Vec<_> = commits.iter().flat_map(|commit| commit.requests.iter().copied()).collect();
    let read = |row: &Row<'_>| ledger_row(row, persisted.get(&row.get(PERSISTED)?).copied().flatten());
    let rows = snapshot.requests(&format!("SELECT {LEDGER_ROW}, commit_id FROM requests"), &ids, read).await?;
    if rows.len() == ids.len() { Ok(rows) } else { Err(StoreError::Corrupt("commit")) }
}

/// Reads the rows of a range of seconds.
pub(crate) async fn rows_between(
    snapshot: &mut Snapshot<'_>,
    seconds: Range<u64>,
    mut take: impl FnMut(LedgerRow),
) -> Result<(), StoreError> {
    let scan = format!(
        "SELECT {LEDGER_ROW}, persisted_at_us FROM requests LEFT JOIN commits ON commits.id = commit_id
         WHERE requests.id >= $1 AND requests.id < $2 ORDER BY requests.id LIMIT $3"
    );
    let [mut first, end] = [seconds.start, seconds.end].map(|at| RequestId::first_at(Timestamp::from_seconds(at)));
    loop {
        let (mut rows, mut last) = (0, first);
        let read = |row: &Row<'_>| {
            let row = ledger_row(row, row.get_optional(PERSISTED)?)?;
            (rows, last) = (rows + 1, row.request_id);
            take(row);
            Ok(())
        };
        snapshot.each(&scan, params![first, end, BATCH_ROWS as u64], read).await?;
        if rows < BATCH_ROWS {
            return Ok(());
        }
        first = RequestId::from_bytes((u128::from_be_bytes(last.to_bytes()) + 1).to_be_bytes());
    }
}

/// The columns that `ledger_row` reads.
const LEDGER_ROW: &str = "requests.id, key_id, account, project, status, code, prompt_tokens, completion_tokens,
    total_tokens, total_us, queue_us, search_us, inference_us";
/// The column after them: when the row became durable, or its commit.
const PERSISTED: usize = 13;

fn ledger_row(row: &Row<'_>, persisted_at: Option<u64>) -> Result<LedgerRow, StoreError> {
    let (request_id, total_us) = (row.get(0)?, row.get(9)?);
    let persist = persisted_at.and_then(|at| persist_us(request_id, total_us, at));
    Ok(LedgerRow {
        request_id,
        key: row.get(1)?,
        owner: row.get_optional(2)?,
        project: row.get_optional(3)?,
        status: row.get(4)?,
        code: row.get_optional(5)?.unwrap_or_default(),
        usage: TokenUsage {
            prompt: row.get_optional(6)?,
            completion: row.get_optional(7)?,
            total: row.get_optional(8)?,
        },
        micros: [Some(total_us), row.get_optional(10)?, row.get_optional(11)?, row.get_optional(12)?, persist],
    })
}
