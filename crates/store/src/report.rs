//! Builds reports from roll-ups as they are read. Pure, and the same for both backends.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;

use chat::{KeyId, Timestamp};

use crate::StoreError;
use crate::latency::Latencies;
use crate::rollup::{Figures, KeySum, Resolution, Rollups};
use crate::scope::Scope;
use crate::usage::{KeyUsage, OutcomeUsage, Period, TimeSlice, UsageQuery, UsageReport};

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

    /// Adds stored roll-ups in the order of time, and what they lack.
    pub(crate) fn add_all(
        &mut self,
        scope: Scope,
        stored: impl IntoIterator<Item = Result<RollupRow, StoreError>>,
        unfolded: &Rollups,
    ) -> Result<(), StoreError> {
        let period = self.query.period.seconds();
        let mut missing = unfolded
            .hours()
            .filter(|(key, ..)| key.scope == scope && period.contains(&key.start))
            .map(|(key, figures, latencies)| RollupRow {
                start: key.start,
                status: key.status,
                code: key.code.clone(),
                figures: *figures,
                latencies: latencies.clone(),
            })
            .peekable();
        for row in stored {
            let row = row?;
            while let Some(earlier) = missing.next_if(|missing| missing.start < row.start) {
                self.add(earlier);
            }
            self.add(row);
        }
        missing.for_each(|row| self.add(row));
        Ok(())
    }

    /// Roll-ups come in the order of time.
    fn add(&mut self, part: RollupRow) {
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

    /// Adds what the stored sums lack.
    pub(crate) fn add_unfolded(&mut self, unfolded: &Rollups, period: Period) {
        let period = period.seconds();
        for (key, sum) in unfolded.sums() {
            if key.span == Resolution::Hour && period.contains(&key.start) {
                let Ok(()) = self.add(key.key.as_bytes(), true, || Ok::<_, Infallible>(*sum));
            }
        }
        for (key, last_use) in unfolded.last_uses() {
            if let Ok(at) = self.keys.binary_search_by_key(&key, |named| named.id) {
                let last_used_at = &mut self.keys[at].last_used_at;
                *last_used_at = (*last_used_at).max(Some(last_use));
            }
        }
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
