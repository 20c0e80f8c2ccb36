//! Outcomes of sign-ins, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct SignInCounters {
    pub(crate) succeeded: Counter,
    /// A wrong password, or no such account.
    pub(crate) failed: Counter,
    /// Refused without a check, because too many attempts were in flight.
    pub(crate) refused: Counter,
}

impl SignInCounters {
    /// By outcome.
    pub fn read(&self) -> [(&'static str, u64); 3] {
        [("succeeded", self.succeeded.get()), ("failed", self.failed.get()), ("refused", self.refused.get())]
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
