//! How the ledger's writer gets on, counted as it goes: for operators, and for nothing else.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use histogram::{Histogram, Snapshot};

/// By which groups are told apart: rows, and microseconds of a commit.
const GROUP_SIZES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024];
const COMMIT_TIMES: &[u64] = &[
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 3_000_000, 10_000_000,
];

/// What the writer has done and has before it, for operators.
#[derive(Debug, Clone)]
pub struct LedgerFigures {
    /// Rows that wait for the writer.
    pub waiting: u64,
    /// How many rows were committed together.
    pub group_rows: Snapshot,
    /// How long commits took that succeeded, in microseconds.
    pub commit_micros: Snapshot,
    /// Commits that failed.
    pub failed_commits: u64,
    /// Rows that were not written, whether or not anybody waited for them.
    pub not_recorded: u64,
}

/// What is counted while rows are written.
pub(crate) struct Work {
    waiting: AtomicU64,
    group_rows: Histogram,
    commit_micros: Histogram,
    failed_commits: AtomicU64,
    not_recorded: AtomicU64,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            waiting: AtomicU64::new(0),
            group_rows: Histogram::new(GROUP_SIZES),
            commit_micros: Histogram::new(COMMIT_TIMES),
            failed_commits: AtomicU64::new(0),
            not_recorded: AtomicU64::new(0),
        }
    }
}

impl Work {
    pub(crate) fn read(&self) -> LedgerFigures {
        LedgerFigures {
            waiting: self.waiting.load(Relaxed),
            group_rows: self.group_rows.snapshot(),
            commit_micros: self.commit_micros.snapshot(),
            failed_commits: self.failed_commits.load(Relaxed),
            not_recorded: self.not_recorded.load(Relaxed),
        }
    }

    /// A row begins to wait.
    pub(crate) fn comes(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    /// Rows do not wait any more.
    pub(crate) fn leaves(&self, rows: usize) {
        self.waiting.fetch_sub(rows as u64, Relaxed);
    }

    pub(crate) fn committed(&self, rows: usize, took: Duration) {
        self.group_rows.record(rows as u64);
        self.commit_micros.record(took.as_micros() as u64);
    }

    /// A commit failed, and with it all its rows.
    pub(crate) fn failed(&self, rows: usize) {
        self.failed_commits.fetch_add(1, Relaxed);
        self.not_recorded(rows);
    }

    pub(crate) fn not_recorded(&self, rows: usize) {
        self.not_recorded.fetch_add(rows as u64, Relaxed);
    }
}
