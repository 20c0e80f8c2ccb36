//! When the ledger's writer folds: not with every commit, and not too late.

use std::time::{Duration, Instant};

use crate::fold::{Backlog, CommitTime};

/// Rows are folded once they are so many, and have taken so many flushes that one more hardly counts. New rows wait
/// meanwhile.
const FOLD_ROWS: usize = 256;
const FOLD_COMMITS: usize = 32;
/// Or once they are so many, or so long after the first of them.
const MAX_ROWS: usize = 1_024;
const FOLD_INTERVAL: Duration = Duration::from_secs(1);
/// Commits whose times are kept until they can be written.
const MAX_COMMIT_TIMES: usize = 16_384;

/// When to fold, and what is then written beside the sums.
pub(crate) struct FoldSchedule {
    times: Vec<CommitTime>,
    /// What was committed since the last time, and when the first of it was.
    commits: usize,
    rows: usize,
    since: Instant,
    /// `None` if there is nothing to fold.
    due: Option<Instant>,
    failing: bool,
}

impl FoldSchedule {
    /// At the start, what an earlier process has left.
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

    /// `true` for the first failure in a row.
    pub(crate) fn postpone(&mut self) -> bool {
        self.due = Some(Instant::now() + FOLD_INTERVAL);
        !std::mem::replace(&mut self.failing, true)
    }
}
