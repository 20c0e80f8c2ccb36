//! The rows of a period that the stored sums do not contain: rows that are not yet folded, and rows of hours that lie only
//! partly in the period. Pure.
//!
//! Rows are deleted after the retention, sums are not. So an hour whose rows no longer all exist is counted whole.

use crate::usage::latency::Latencies;
use crate::usage::query::{Period, RequestScope};
use crate::usage::rollup::{Figures, KeySum, LedgerRow, Resolution, RollupKey, Rollups, SumKey};
use crate::values::Scope;

pub(crate) struct PendingRows {
    period: Period,
    is_widened: bool,
    unfolded: Rollups,
    of_cut_hours: Rollups,
}

impl PendingRows {
    /// The rows of the period's cut hours are still to be added.
    pub(crate) fn new(period: Period, unfolded: Rollups) -> Self {
        Self { period, is_widened: false, unfolded, of_cut_hours: Rollups::default() }
    }

    /// Counts an hour whole unless all of its rows exist. `folded` is the number of its rows in the sums. Returns whether
    /// they all exist.
    pub(crate) fn require_rows(&mut self, hour: u64, rows: u64, folded: u64) -> bool {
        let of_hour = |key: &RollupKey| key.scope == Scope::Everyone && key.start == hour;
        let unfolded: u64 =
            self.unfolded.hours().filter(|(key, ..)| of_hour(key)).map(|(_, figures, _)| figures.requests).sum();
        let is_complete = rows >= folded + unfolded;
        if !is_complete {
            self.period = self.period.widened(hour);
            self.is_widened = true;
        }
        is_complete
    }

    /// Adds a row of a cut hour; the row lies in the period.
    pub(crate) fn add(&mut self, row: &LedgerRow) {
        self.of_cut_hours.add(row);
    }

    /// The period that is counted, including whole hours.
    pub(crate) fn period(&self) -> Period {
        self.period
    }

    pub(crate) fn is_widened(&self) -> bool {
        self.is_widened
    }

    /// All unfolded rows, of any time.
    pub(crate) fn unfolded(&self) -> &Rollups {
        &self.unfolded
    }

    pub(crate) fn hours(&self, scope: RequestScope) -> impl Iterator<Item = (&RollupKey, &Figures, &Latencies)> {
        let whole = self.period.whole_hours();
        let unfolded = self.unfolded.hours().filter(move |(key, ..)| whole.contains(&key.start));
        unfolded.chain(self.of_cut_hours.hours()).filter(move |(key, ..)| scope.counts(key))
    }

    /// By hour, key, owner and project.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&SumKey, &KeySum)> {
        let whole = self.period.whole_hours();
        let unfolded = self.unfolded.sums().filter(move |(key, _)| whole.contains(&key.start));
        unfolded.chain(self.of_cut_hours.sums()).filter(|(key, _)| key.span == Resolution::Hour)
    }
}
