//! Counts of budgets that are used up and of delivered notifications, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct AlertCounters {
    /// Budgets of which at least 80 % and 100 % are used.
    budgets: [AtomicU64; 2],
    delivered: AtomicU64,
    failed: AtomicU64,
}

impl AlertCounters {
    /// Sets the numbers of budgets that have reached 80 % and 100 %.
    pub fn set_budgets(&self, reached: [usize; 2]) {
        self.budgets.iter().zip(reached).for_each(|(gauge, count)| gauge.store(count as u64, Ordering::Relaxed));
    }

    pub fn count_delivery(&self, is_delivered: bool) {
        let counter = if is_delivered { &self.delivered } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Alerts {
        let [at_80, at_100] = [&self.budgets[0], &self.budgets[1]].map(|gauge| gauge.load(Ordering::Relaxed));
        let [delivered, failed] = [&self.delivered, &self.failed].map(|counter| counter.load(Ordering::Relaxed));
        Alerts { budgets: [("0.8", at_80), ("1", at_100)], deliveries: [("delivered", delivered), ("failed", failed)] }
    }
}

/// A snapshot for the metrics.
pub(crate) struct Alerts {
    /// By the fraction that is used, at least.
    pub(crate) budgets: [(&'static str, u64); 2],
    /// By outcome.
    pub(crate) deliveries: [(&'static str, u64); 2],
}
