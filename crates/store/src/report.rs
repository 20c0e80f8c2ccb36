//! Builds reports from roll-ups as they are read. Pure, and the same for both backends.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use chat::{KeyId, Timestamp};

use crate::latency::Latencies;
use crate::rollup::{Figures, KeySum};
use crate::usage::{KeyUsage, OutcomeUsage, TimeSlice, UsageQuery, UsageReport};

/// Sums the roll-ups of one scope, by everything except the key.
pub(crate) struct ReportBuilder<'a> {
    query: &'a UsageQuery,
    report: UsageReport,
    outcomes: BTreeMap<(u16, String), Figures>,
}

pub(crate) struct RollupRow {
    pub(crate) start: u64,
    pub(crate) status: u16,
    /// Empty for a success.
    pub(crate) code: String,
    pub(crate) figures: Figures,
    pub(crate) latencies: Latencies,
}

impl<'a> ReportBuilder<'a> {
    pub(crate) fn new(query: &'a UsageQuery) -> Self {
        let report = UsageReport { since: query.period.start(), ..UsageReport::default() };
        Self { query, report, outcomes: BTreeMap::new() }
    }

    /// Roll-ups come in the order of time.
    pub(crate) fn add(&mut self, part: RollupRow) {
        let succeeded = if part.code.is_empty() { part.figures.requests } else { 0 };
        let start = self.query.step.resolution().start_of(part.start);
        let start = Timestamp::from_seconds(start);
        let slices = &mut self.report.by_time;
        if slices.last().is_none_or(|slice| slice.start != start) {
            slices.push(TimeSlice { start, ..TimeSlice::default() });
        }
        if let Some(slice) = slices.last_mut() {
            slice.figures.merge(&part.figures);
            slice.succeeded += succeeded;
            slice.latencies.merge(&part.latencies);
        }
        self.outcomes.entry((part.status, part.code)).or_default().merge(&part.figures);
    }

    /// `until` is when the report was made.
    pub(crate) fn finish(self, until: Timestamp) -> UsageReport {
        let mut report = UsageReport { until, ..self.report };
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

/// Sums by key. Keys and sums come in the order of ids, so each sum finds its key by going on from the previous one, or
/// from the first one where the next range of time starts.
pub(crate) struct KeyUsageBuilder {
    keys: Vec<NamedKey>,
    sums: Vec<KeySum>,
    at: usize,
}

pub(crate) struct NamedKey {
    pub(crate) id: KeyId,
    pub(crate) name: String,
    pub(crate) last_used_at: Option<Timestamp>,
}

impl KeyUsageBuilder {
    /// The keys are in the order of their ids.
    pub(crate) fn new(keys: Vec<NamedKey>) -> Self {
        Self { sums: vec![KeySum::default(); keys.len()], keys, at: 0 }
    }

    /// Adds or subtracts a key's sums. `part` is read only for keys that are in the report.
    pub(crate) fn add<E>(
        &mut self,
        key: &[u8],
        added: bool,
        part: impl FnOnce() -> Result<KeySum, E>,
    ) -> Result<(), E> {
        let Self { keys, sums, at } = self;
        if *at > 0 && keys[*at - 1].id.as_bytes() >= key {
            *at = 0;
        }
        while keys.get(*at).is_some_and(|known| known.id.as_bytes() < key) {
            *at += 1;
        }
        if keys.get(*at).is_some_and(|known| known.id.as_bytes() == key) {
            let part = part()?;
            if added {
                sums[*at].merge(&part);
            } else {
                sums[*at].subtract(&part);
            }
            *at += 1;
        }
        Ok(())
    }

    /// The keys that were used, the most used first.
    pub(crate) fn finish(self) -> Vec<KeyUsage> {
        let mut used: Vec<_> = self
            .keys
            .into_iter()
            .zip(self.sums)
            .filter(|(_, sum)| sum.figures.requests > 0)
            .map(|(key, KeySum { figures, succeeded })| {
                let figures = Figures { last_at: key.last_used_at.unwrap_or_default(), ..figures };
                KeyUsage { key: key.id, name: key.name, figures, succeeded }
            })
            .collect();
        used.sort_unstable_by_key(|usage| (Reverse(usage.figures.requests), usage.key));
        used
    }
}
