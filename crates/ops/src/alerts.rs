//! Counts of budgets that are used up and of notifications, for the metrics.

use histogram::Counters;

#[derive(Debug)]
pub struct AlertCounters {
    /// Budgets of which at least 80 % and 100 % are used; gauges.
    pub budgets: Counters<2>,
    /// Attempts to deliver a notification: successes, failures.
    pub deliveries: Counters<2>,
}

impl Default for AlertCounters {
    fn default() -> Self {
        Self { budgets: Counters::new(["0.8", "1"]), deliveries: Counters::new(["delivered", "failed"]) }
    }
}
