//! When the ledger's writer folds: less often than it commits, but within a second or so.

use std::time::{Duration, Instant};

use crate::ledger::fold::{Backlog, CommitTime};

/// Rows are folded once there are at least this many, from so many commits that one more flush adds little. New rows wait
/// meanwhile.
const FOLD_ROWS: usize = 256;
const FOLD_COMMITS: usize = 32;
/// Rows are also folded once there are this many, or this long after the first of them.
const MAX_ROWS: usize = 1_024;
const FOLD_INTERVAL: Duration = Duration::from_secs(1);
/// Commits whose times are kept until they can be written.
const MAX_COMMIT_TIMES: usize = 16_384;

/// When to fold, and the commit times that are then written beside the sums.
pub(crate) struct FoldSchedule {
    times: Vec<CommitTime>,
    /// Commits and rows since the last fold, and the time of the first.
    commits: usize,
    rows: usize,
    since: Instant,
    /// `None` if there is nothing to fold.
    due: Option<Instant>,
    failing: bool,
}

impl FoldSchedule {
    /// The first fold is due immediately: an earlier process may have left rows.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { times: Vec::new(), commits: 0, rows: 0, since: now, due: Some(now), failing: false }
    }

    pub(crate) fn rows_committed(&mut self, rows: usize) {
        if self.commits == 0 {
            self.since = Instant::now();
        }
        self.commits += 1;
        self.rows += rows;
        self.due.get_or_insert_with(|| Instant::now() + FOLD_INTERVAL);
    }

    pub(crate) fn add_time(&mut self, time: CommitTime) {
        if self.times.len() < MAX_COMMIT_TIMES {
            self.times.push(time);
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        let is_enough = (self.rows >= FOLD_ROWS && self.commits >= FOLD_COMMITS) || self.rows >= MAX_ROWS;
        self.wait().is_zero() || (is_enough && !self.failing)
    }

    pub(crate) fn wait(&self) -> Duration {
        self.due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()))
    }

    /// Commits whose times are to be written.
    pub(crate) fn times(&self) -> &[CommitTime] {
        &self.times
    }

    /// How long the first row has waited.
    pub(crate) fn lag(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn done(&mut self, backlog: &Backlog) {
        self.times.clear();
        (self.commits, self.rows) = (0, 0);
        self.failing = false;
        let wait = if backlog.is_ready { Duration::ZERO } else { FOLD_INTERVAL };
        self.due = (backlog.rows > 0).then(|| Instant::now() + wait);
    }

    /// `true` for the first of several failures in a row.
    pub(crate) fn postpone(&mut self) -> bool {
        self.due = Some(Instant::now() + FOLD_INTERVAL);
        !std::mem::replace(&mut self.failing, true)
    }
}
