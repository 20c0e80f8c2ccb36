//! Roll-ups, and what a recorded request adds to them. Pure and commutative: rows may arrive in any order and grouping, and
//! every way of summing gives the same figure.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use chat::{FinishReason, KeyId, RequestId, Timestamp, TokenUsage};

use crate::usage::latency::{Latencies, Phase};
use crate::usage::query::persist_us;
use crate::values::{AccountId, Project, Scope};

/// One request in the ledger.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Contains the time of arrival.
    pub request_id: RequestId,
    pub key: KeyId,
    /// `None` for a key that was created at the command line.
    pub owner: Option<AccountId>,
    pub project: Option<Project>,
    pub outcome: Outcome,
    /// Measured token counts.
    pub usage: TokenUsage,
    pub timings: Timings,
    /// `None` if grounding was not considered.
    pub grounding: Option<GroundingRecord>,
    pub inference: InferenceRecord,
}

/// The runtime of a completion, and why it ended. Empty for a request that was sent to no runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InferenceRecord {
    /// The name of the last runtime that was tried: its URL without secrets.
    pub runtime: Option<Arc<str>>,
    pub finish_reason: Option<FinishReason>,
}

/// A request's grounding in numbers; its text is never stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroundingRecord {
    /// The score of the request's need for facts, from 0 to 1.
    pub score: f32,
    /// The version of the scorer.
    pub scorer: u16,
    /// The number of sources in the prompt; `None` if there was no search, or it failed.
    pub sources: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// The HTTP status that was returned to the caller.
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<&'static str>,
}

/// The durations of a request's steps; `None` for a step that did not happen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    /// From arrival to the start of work.
    pub queue: Option<Duration>,
    /// The request to Search.
    pub search: Option<Duration>,
    /// The wait for the runtime.
    pub inference: Option<Duration>,
    /// From arrival until the row is queued.
    pub total: Duration,
}

/// The parts of a recorded request that the roll-ups use.
#[derive(Debug, Clone)]
pub(crate) struct LedgerRow {
    pub(crate) request_id: RequestId,
    pub(crate) key: KeyId,
    /// The key's owner at the time of the request.
    pub(crate) owner: Option<AccountId>,
    /// The key's project at the time of the request.
    pub(crate) project: Option<Project>,
    pub(crate) status: u16,
    /// Empty for a success.
    pub(crate) code: String,
    pub(crate) usage: TokenUsage,
    /// In microseconds, by phase; `None` for a phase that did not happen or is unknown.
    pub(crate) micros: [Option<u64>; Phase::ALL.len()],
}

impl LedgerRow {
    pub(crate) fn new(entry: &Entry, persisted_at_micros: Option<u64>) -> Self {
        let micros = |time: Duration| time.as_micros() as u64;
        let Timings { queue, search, inference, total } = entry.timings;
        let persist = persisted_at_micros.and_then(|at| persist_us(entry.request_id, micros(total), at));
        Self {
            request_id: entry.request_id,
            key: entry.key,
            owner: entry.owner,
            project: entry.project.clone(),
            status: entry.outcome.status,
            code: entry.outcome.code.unwrap_or_default().to_owned(),
            usage: entry.usage,
            micros: [Some(micros(total)), queue.map(micros), search.map(micros), inference.map(micros), persist],
        }
    }
}

/// Sums over requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub requests: u64,
    pub prompt: Measured,
    pub completion: Measured,
    pub total: Measured,
    /// The arrival of the newest request; the default if there are none.
    pub last_at: Timestamp,
}

impl Figures {
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.prompt.merge(other.prompt);
        self.completion.merge(other.completion);
        self.total.merge(other.total);
        self.last_at = self.last_at.max(other.last_at);
    }
}

/// A sum of token counts, and the number of requests whose count was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    pub sum: u64,
    pub count: u64,
}

impl Measured {
    /// `None` if nothing was measured: unmeasured is not zero.
    pub fn get(self) -> Option<u64> {
        (self.count > 0).then_some(self.sum)
    }

    fn from_count(figure: Option<u32>) -> Self {
        Self { sum: figure.unwrap_or(0).into(), count: figure.is_some().into() }
    }

    fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }
}

/// The length of the time that a roll-up covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resolution {
    Hour,
    Day,
    EightDays,
}

impl Resolution {
    const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::EightDays];

    pub(crate) const fn seconds(self) -> u64 {
        match self {
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::EightDays => 8 * 86_400,
        }
    }

    /// The start of the range that contains a time, both in seconds since 1970.
    pub(crate) fn start_of(self, seconds: u64) -> u64 {
        seconds - seconds % self.seconds()
    }
}

/// A roll-up holds the requests of one scope and hour that ended with the same outcome. A key's are kept by owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RollupKey {
    pub(crate) scope: Scope,
    pub(crate) start: u64,
    pub(crate) status: u16,
    /// Empty for a success.
    pub(crate) code: String,
    /// The key's owner at the time of the request; `None` for other scopes.
    pub(crate) owner: Option<AccountId>,
}

/// A sum holds the requests of one key over a range of time, while it had one owner and one project.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SumKey {
    pub(crate) span: Resolution,
    pub(crate) start: u64,
    pub(crate) part: Part,
}

/// What a request's usage is grouped by, as it was at the time of the request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Part {
    pub(crate) key: KeyId,
    pub(crate) owner: Option<AccountId>,
    pub(crate) project: Option<Project>,
}

/// Sums over requests of any outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeySum {
    pub(crate) figures: Figures,
    pub(crate) succeeded: u64,
}

impl KeySum {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.figures.merge(&other.figures);
        self.succeeded += other.succeeded;
    }
}

/// The additions to roll-ups, in the order in which they are written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rollups {
    hours: BTreeMap<RollupKey, (Figures, Latencies)>,
    sums: BTreeMap<SumKey, KeySum>,
}

impl Rollups {
    pub(crate) fn add(&mut self, row: &LedgerRow) {
        let figures = Figures {
            requests: 1,
            prompt: Measured::from_count(row.usage.prompt),
            completion: Measured::from_count(row.usage.completion),
            total: Measured::from_count(row.usage.total),
            last_at: row.request_id.timestamp(),
        };
        for rollup in rollup_keys(row) {
            let (sums, latencies) = self.hours.entry(rollup).or_default();
            sums.merge(&figures);
            for (phase, micros) in Phase::ALL.into_iter().zip(row.micros) {
                micros.into_iter().for_each(|micros| latencies.add(phase, micros));
            }
        }
        let seconds = row.request_id.unix_seconds();
        for span in Resolution::ALL {
            let part = Part { key: row.key, owner: row.owner, project: row.project.clone() };
            let sum = KeySum { figures, succeeded: row.code.is_empty().into() };
            self.sums.entry(SumKey { span, start: span.start_of(seconds), part }).or_default().merge(&sum);
        }
    }

    /// Sums by scope, hour and outcome.
    pub(crate) fn hours(&self) -> impl Iterator<Item = (&RollupKey, &Figures, &Latencies)> {
        self.hours.iter().map(|(key, (figures, latencies))| (key, figures, latencies))
    }

    /// Sums by key, owner and project.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&SumKey, &KeySum)> {
        self.sums.iter()
    }

    /// The last use of each key.
    pub(crate) fn last_uses(&self) -> BTreeMap<KeyId, Timestamp> {
        let mut uses: BTreeMap<KeyId, Timestamp> = BTreeMap::new();
        for (key, sum) in self.sums.iter().filter(|(key, _)| key.span == Resolution::EightDays) {
            let last = uses.entry(key.part.key).or_default();
            *last = sum.figures.last_at.max(*last);
        }
        uses
    }
}

/// The roll-ups that a request counts in.
fn rollup_keys(row: &LedgerRow) -> impl Iterator<Item = RollupKey> {
    let start = Resolution::Hour.start_of(row.request_id.unix_seconds());
    let scopes = [Some((Scope::Everyone, None)), row.owner.map(|owner| (Scope::Owner(owner), None))];
    let scopes = scopes.into_iter().chain([Some((Scope::Key(row.key), row.owner))]);
    let key = move |(scope, owner)| RollupKey { scope, start, status: row.status, code: row.code.clone(), owner };
    scopes.flatten().map(key)
}

/// Sums of one resolution whose starts lie in a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SumRange {
    pub(crate) span: Resolution,
    pub(crate) starts: Range<u64>,
}

/// The sums that make up a period of whole hours (in seconds since 1970): the widest in its middle, and finer ones from
/// there to its ends. So few sums are read, even for a long period.
pub(crate) fn sum_ranges(hours: &Range<u64>, widest: Resolution) -> Vec<SumRange> {
    let (mut ranges, mut outer) = (Vec::new(), None::<Range<u64>>);
    for span in Resolution::ALL.into_iter().rev().filter(|span| *span <= widest) {
        let starts = hours.start.next_multiple_of(span.seconds())..span.start_of(hours.end);
        if starts.is_empty() {
            continue;
        }
        let inner = outer.replace(starts.clone()).unwrap_or(starts.end..starts.end);
        let edges = [starts.start..inner.start.min(starts.end), inner.end.max(starts.start)..starts.end];
        ranges.extend(edges.into_iter().filter(|edge| !edge.is_empty()).map(|starts| SumRange { span, starts }));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEYS: [&str; 3] = ["000000000001", "000000000002", "000000000003"];
    const OWNERS: [Option<&str>; 3] = [None, Some("A00000000001"), Some("A00000000002")];

    fn rows() -> impl Strategy<Value = Vec<LedgerRow>> {
        let token = || proptest::option::of(0u32..1000);
        let row = (0u64..20 * 86_400, 0..3usize, 0..2usize, token(), token(), token(), 0u64..1 << 30);
        proptest::collection::vec(row, 0..50).prop_map(|all| {
            let row =
                |(second, key, outcome, prompt, completion, total, micros): (_, usize, usize, _, _, _, _)| LedgerRow {
                    request_id: RequestId::at_micros(second * 1_000_000, 7),
                    key: KEYS[key].parse().unwrap(),
                    owner: OWNERS[key].map(|owner| owner.parse().unwrap()),
                    project: (outcome == 1).then(|| Project::stored("search")),
                    status: [200, 502][outcome],
                    code: ["", "inference_error"][outcome].to_owned(),
                    usage: TokenUsage { prompt, completion, total },
                    micros: [Some(micros), None, None, None, None],
                };
            all.into_iter().map(row).collect()
        })
    }

    fn rolled_up(rows: &[LedgerRow]) -> Rollups {
        let mut rollups = Rollups::default();
        rows.iter().for_each(|row| rollups.add(row));
        rollups
    }

    fn sum(rollups: &Rollups, wanted: impl Fn(&RollupKey) -> bool) -> (Figures, Latencies) {
        let mut all = (Figures::default(), Latencies::default());
        for (_, figures, latencies) in rollups.hours().filter(|(key, ..)| wanted(key)) {
            all.0.merge(figures);
            all.1.merge(latencies);
        }
        all
    }

    proptest! {
        #[test]
        fn every_way_of_summing_gives_the_same_figures(rows in rows()) {
            let rollups = rolled_up(&rows);
            let everyone = sum(&rollups, |key| key.scope == Scope::Everyone);
            prop_assert_eq!(everyone.0.requests, rows.len() as u64);
            prop_assert_eq!(&sum(&rollups, |key| matches!(key.scope, Scope::Key(_))), &everyone);
            let own = sum(&rollups, |key| matches!(key.scope, Scope::Owner(_)));
            let owned = sum(&rollups, |key| matches!(key.scope, Scope::Key(id) if id.as_str() != KEYS[0]));
            prop_assert_eq!(own, owned);
            for span in Resolution::ALL {
                let mut all = KeySum::default();
                rollups.sums().filter(|(key, _)| key.span == span).for_each(|(_, part)| all.merge(part));
                prop_assert_eq!(all.figures, everyone.0);
                prop_assert_eq!(all.succeeded, sum(&rollups, |key| {
                    key.scope == Scope::Everyone && key.code.is_empty()
                }).0.requests);
            }
        }

        #[test]
        fn order_does_not_matter(rows in rows()) {
            let mut reversed = rows.clone();
            reversed.reverse();
            let (one, other) = (rolled_up(&rows), rolled_up(&reversed));
            prop_assert!(one.hours().eq(other.hours()) && one.sums().eq(other.sums()));
        }

        #[test]
        fn eight_day_day_and_hour_sums_equal_the_sum_of_hours(
            rows in rows(),
            from in 0u64..22 * 24,
            length in proptest::option::of(1u64..22 * 24),
            widest in (0..Resolution::ALL.len()).prop_map(|at| Resolution::ALL[at]),
        ) {
            let from = from * 3600;
            let to = length.map_or(Resolution::EightDays.start_of(i64::MAX as u64), |length| from + length * 3600);
            let rollups = rolled_up(&rows);
            let mut summed = KeySum::default();
            for SumRange { span, starts } in sum_ranges(&(from..to), widest) {
                let within = rollups.sums().filter(|(key, _)| key.span == span && starts.contains(&key.start));
                within.for_each(|(_, part)| summed.merge(part));
            }
            let hours = sum(&rollups, |key| key.scope == Scope::Everyone && (from..to).contains(&key.start)).0;
            prop_assert_eq!(summed.figures, hours);
        }
    }
}
