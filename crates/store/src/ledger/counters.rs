//! Counters of the ledger's writer, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use histogram::{Histogram, Snapshot};
use parking_lot::Mutex;

use crate::ledger::fold::Backlog;

/// Bucket bounds: rows per group, microseconds per commit.
const GROUP_ROWS_BOUNDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024];
const COMMIT_MICROS_BOUNDS: &[u64] = &[
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 3_000_000, 10_000_000,
];

#[derive(Debug, Clone, Default)]
pub struct LedgerStats {
    /// Rows that wait for the writer.
    pub queued: u64,
    pub group_rows: Snapshot,
    /// Durations of successful commits.
    pub commit_micros: Snapshot,
    pub failed_commits: u64,
    /// Panics that the writer has recovered from.
    pub panics: u64,
    /// Rows that were not written, including those that no request waited for.
    pub not_recorded: u64,
    /// Rows that are not yet in the sums, and how long the oldest of them has waited.
    pub unfolded_rows: u64,
    pub fold_lag_seconds: f64,
    /// Commits that could not be read and were set aside: their rows are in no sum.
    pub unreadable_commits: u64,
    /// How far the database's clock is ahead of the time by which old rows are deleted.
    pub clock_disagreement_seconds: i64,
    /// How far this machine's clock is ahead of the database server's; 0 with SQLite.
    pub machine_clock_ahead_seconds: f64,
}

pub(crate) struct LedgerCounters {
    queued: AtomicU64,
    group_rows: Histogram,
    commit_micros: Histogram,
    /// All others; `queued` and the histograms in it stay empty.
    pub(crate) stats: Mutex<LedgerStats>,
}

impl Default for LedgerCounters {
    fn default() -> Self {
        Self {
            queued: AtomicU64::new(0),
            group_rows: Histogram::new(GROUP_ROWS_BOUNDS),
            commit_micros: Histogram::new(COMMIT_MICROS_BOUNDS),
            stats: Mutex::default(),
        }
    }
}

impl LedgerCounters {
    pub(crate) fn snapshot(&self) -> LedgerStats {
        LedgerStats {
            queued: self.queued.load(Relaxed),
            group_rows: self.group_rows.snapshot(),
            commit_micros: self.commit_micros.snapshot(),
            ..self.stats.lock().clone()
        }
    }

    pub(crate) fn row_queued(&self) {
        self.queued.fetch_add(1, Relaxed);
    }

    pub(crate) fn rows_dequeued(&self, rows: usize) {
        self.queued.fetch_sub(rows as u64, Relaxed);
    }

    pub(crate) fn committed(&self, rows: usize, took: Duration) {
        self.group_rows.record(rows as u64);
        self.commit_micros.record(took.as_micros() as u64);
    }

    pub(crate) fn set_backlog(&self, backlog: &Backlog, now_micros: u64) {
        let mut stats = self.stats.lock();
        stats.unfolded_rows = backlog.rows;
        stats.unreadable_commits += backlog.unreadable;
        stats.fold_lag_seconds = backlog.lag(now_micros).as_secs_f64();
    }
}
