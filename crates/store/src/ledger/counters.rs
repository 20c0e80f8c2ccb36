//! Counters of the ledger's writer, for metrics.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use histogram::{Histogram, Snapshot};

use crate::ledger::fold::Backlog;

/// Bucket bounds: rows per group, microseconds per commit.
const GROUP_ROWS_BOUNDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024];
const COMMIT_MICROS_BOUNDS: &[u64] = &[
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 3_000_000, 10_000_000,
];

#[derive(Debug, Clone)]
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
    failed_commits: AtomicU64,
    panics: AtomicU64,
    not_recorded: AtomicU64,
    unfolded_rows: AtomicU64,
    fold_lag_micros: AtomicU64,
    unreadable_commits: AtomicU64,
    clock_disagreement_seconds: AtomicI64,
}

impl Default for LedgerCounters {
    fn default() -> Self {
        Self {
            queued: AtomicU64::new(0),
            group_rows: Histogram::new(GROUP_ROWS_BOUNDS),
            commit_micros: Histogram::new(COMMIT_MICROS_BOUNDS),
            failed_commits: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            not_recorded: AtomicU64::new(0),
            unfolded_rows: AtomicU64::new(0),
            fold_lag_micros: AtomicU64::new(0),
            unreadable_commits: AtomicU64::new(0),
            clock_disagreement_seconds: AtomicI64::new(0),
        }
    }
}

impl LedgerCounters {
    pub(crate) fn snapshot(&self) -> LedgerStats {
        LedgerStats {
            queued: self.queued.load(Relaxed),
            group_rows: self.group_rows.snapshot(),
            commit_micros: self.commit_micros.snapshot(),
            failed_commits: self.failed_commits.load(Relaxed),
            panics: self.panics.load(Relaxed),
            not_recorded: self.not_recorded.load(Relaxed),
            unfolded_rows: self.unfolded_rows.load(Relaxed),
            fold_lag_seconds: Duration::from_micros(self.fold_lag_micros.load(Relaxed)).as_secs_f64(),
            unreadable_commits: self.unreadable_commits.load(Relaxed),
            clock_disagreement_seconds: self.clock_disagreement_seconds.load(Relaxed),
            machine_clock_ahead_seconds: 0.0,
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

    pub(crate) fn commit_failed(&self, rows: usize) {
        self.failed_commits.fetch_add(1, Relaxed);
        self.rows_lost(rows);
    }

    pub(crate) fn panicked(&self) {
        self.panics.fetch_add(1, Relaxed);
    }

    pub(crate) fn set_backlog(&self, backlog: &Backlog, now_micros: u64) {
        self.unfolded_rows.store(backlog.rows, Relaxed);
        self.unreadable_commits.fetch_add(backlog.unreadable, Relaxed);
        self.set_fold_lag(backlog.lag(now_micros));
    }

    pub(crate) fn set_fold_lag(&self, lag: Duration) {
        self.fold_lag_micros.store(lag.as_micros() as u64, Relaxed);
    }

    pub(crate) fn set_clock_disagreement(&self, seconds: i64) {
        self.clock_disagreement_seconds.store(seconds, Relaxed);
    }

    pub(crate) fn rows_lost(&self, rows: usize) {
        self.not_recorded.fetch_add(rows as u64, Relaxed);
    }
}
