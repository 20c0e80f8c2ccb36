//! Whether the ledger can write; set by its writer, read before a request is started.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A longer commit means that the disk hangs: new requests are then refused.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct Health {
    failing: AtomicBool,
    epoch: Instant,
    /// Milliseconds from `epoch` to the start of the current commit, plus one; 0 when there is none.
    commit_started_at: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self { failing: AtomicBool::new(false), epoch: Instant::now(), commit_started_at: AtomicU64::new(0) }
    }
}

impl Health {
    pub(crate) fn is_healthy(&self) -> bool {
        if self.failing.load(Ordering::Relaxed) {
            return false;
        }
        match self.commit_started_at.load(Ordering::Relaxed) {
            0 => true,
            started_at => self.epoch.elapsed() < Duration::from_millis(started_at - 1) + STALL_TIMEOUT,
        }
    }

    pub(crate) fn commit_started(&self) {
        self.commit_started_at.store(self.epoch.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    pub(crate) fn commit_finished(&self, well: bool) {
        self.commit_started_at.store(0, Ordering::Relaxed);
        if well && self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("the ledger writes again");
        }
    }

    /// Returns `true` if the ledger was healthy before.
    pub(crate) fn set_failing(&self) -> bool {
        !self.failing.swap(true, Ordering::Relaxed)
    }
}
