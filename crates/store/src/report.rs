//! Builds reports from roll-ups as they are read. Pure, and the same for both backends.

use std::collections::BTreeMap;

use chat::Timestamp;

use crate::StoreError;
use crate::latency::Latencies;
use crate::pending::PendingRows;
use crate::rollup::Figures;
use crate::scope::Scope;
use crate::usage::{OutcomeUsage, Step, TimeSlice, UsageReport};

/// Sums the roll-ups of one scope, by time and outcome.
pub(crate) struct ReportBuilder {
    step: Step,
    slices: BTreeMap<Timestamp, TimeSlice>,
    outcomes: BTreeMap<(u16, String), Figures>,
    failed_latencies: Latencies,
}

pub(crate) struct RollupRow {
    pub(crate) start: u64,
    pub(crate) status: u16,
    /// Empty for a success.
    pub(crate) code: String,
    pub(crate) figures: Figures,
    pub(crate) latencies: Latencies,
}

impl ReportBuilder {
    pub(crate) fn new(step: Step) -> Self {
        Self { step, slices: BTreeMap::new(), outcomes: BTreeMap::new(), failed_latencies: Latencies::default() }
    }

    /// Adds stored roll-ups, and the rows that they do not contain.
    pub(crate) fn add_all(
        &mut self,
        scope: Scope,
        stored: impl IntoIterator<Item = Result<RollupRow, StoreError>>,
        pending: &PendingRows,
    ) -> Result<(), StoreError> {
        for row in stored {
            self.add(row?);
        }
        pending.hours(scope).for_each(|row| self.add(row));
        Ok(())
    }

    fn add(&mut self, part: RollupRow) {
        let start = Timestamp::from_seconds(self.step.resolution().start_of(part.start));
        let slice = self.slices.entry(start).or_insert_with(|| TimeSlice { start, ..TimeSlice::default() });
        slice.figures.merge(&part.figures);
        if part.code.is_empty() {
            slice.succeeded += part.figures.requests;
            slice.latencies.merge(&part.latencies);
        } else {
            self.failed_latencies.merge(&part.latencies);
        }
        self.outcomes.entry((part.status, part.code)).or_default().merge(&part.figures);
    }

    pub(crate) fn finish(self, pending: &PendingRows, now: Timestamp) -> UsageReport {
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
        let outcomes = self.outcomes.into_iter().map(|((status, code), figures)| OutcomeUsage {
            status,
            code: (!code.is_empty()).then_some(code),
            figures,
        });
        report.by_outcome = outcomes.collect();
        report
    }
}
