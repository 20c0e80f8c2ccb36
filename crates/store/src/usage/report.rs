//! Builds reports from roll-ups as they are read. Pure, and the same for both backends.

use std::collections::BTreeMap;

use chat::Timestamp;

use crate::usage::latency::Latencies;
use crate::usage::pending::PendingRows;
use crate::usage::query::{GroupLabel, RequestScope, Step, UsageGroup, UsageReport};
use crate::usage::rollup::Figures;

/// Sums the roll-ups of one scope, by time and outcome.
pub(crate) struct ReportBuilder {
    step: Step,
    slices: BTreeMap<Timestamp, UsageGroup>,
    outcomes: BTreeMap<(u16, String), Figures>,
    failed_latencies: Latencies,
}

impl ReportBuilder {
    pub(crate) fn new(step: Step) -> Self {
        Self { step, slices: BTreeMap::new(), outcomes: BTreeMap::new(), failed_latencies: Latencies::default() }
    }

    /// Adds a roll-up; `code` is empty for a success.
    pub(crate) fn add(&mut self, start: u64, status: u16, code: &str, figures: &Figures, latencies: &Latencies) {
        let start = Timestamp::from_seconds(self.step.resolution().start_of(start));
        let empty = || UsageGroup::new(GroupLabel::Time(start), Figures::default(), 0);
        let slice = self.slices.entry(start).or_insert_with(empty);
        slice.figures.merge(figures);
        if code.is_empty() {
            slice.succeeded += figures.requests;
            slice.latencies.merge(latencies);
        } else {
            self.failed_latencies.merge(latencies);
        }
        self.outcomes.entry((status, code.to_owned())).or_default().merge(figures);
    }

    /// Adds the rows that the roll-ups do not contain.
    pub(crate) fn finish(mut self, scope: RequestScope, pending: &PendingRows, now: Timestamp) -> UsageReport {
        for (key, figures, latencies) in pending.hours(scope) {
            self.add(key.start, key.status, &key.code, figures, latencies);
        }
        let period = pending.period();
        let mut report = UsageReport {
            since: period.start(),
            until: period.end().min(now),
            is_widened: pending.is_widened(),
            failed_latencies: self.failed_latencies,
            by_time: self.slices.into_values().collect(),
            ..UsageReport::default()
        };
        for slice in &report.by_time {
            report.totals.merge(&slice.figures);
            report.succeeded += slice.succeeded;
            report.latencies.merge(&slice.latencies);
        }
        let outcome = |((status, code), figures): ((u16, String), Figures)| {
            let (succeeded, code) = if code.is_empty() { (figures.requests, None) } else { (0, Some(code)) };
            UsageGroup::new(GroupLabel::Outcome(status, code), figures, succeeded)
        };
        report.by_outcome = self.outcomes.into_iter().map(outcome).collect();
        report
    }
}
