//! The arithmetic of the ledger: what one recorded request adds to which roll-ups. Pure, and commutative throughout,
//! so that rows may arrive in any order and grouping, and every way of summing up gives the same figure.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use chat::{KeyId, RequestId, TokenUsage};

use crate::latency::{Latencies, Phase};

/// One request as the ledger keeps it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The request's id, which is also when it arrived.
    pub request_id: RequestId,
    /// The caller's key.
    pub key: KeyId,
    /// How it ended.
    pub outcome: Outcome,
    /// Token figures as measured.
    pub usage: TokenUsage,
    /// Where its time went.
    pub timings: Timings,
}

/// How a request ended: the HTTP status and, unless it succeeded, the error's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// The HTTP status that the caller was given.
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<&'static str>,
}

/// Where a request's time went. What did not happen is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    /// From arrival to the start of work.
    pub queue: Option<Duration>,
    /// Asking Search.
    pub search: Option<Duration>,
    /// Waiting for the runtime.
    pub inference: Option<Duration>,
    /// From arrival to the hand-over to the ledger.
    pub total: Duration,
}

/// Sums over requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// How many requests.
    pub requests: u64,
    /// Prompt tokens.
    pub prompt: Measured,
    /// Completion tokens.
    pub completion: Measured,
    /// Total tokens.
    pub total: Measured,
    /// When the newest of them arrived, in milliseconds since 1970; 0 for none.
    pub last_at: u64,
}

impl Figures {
    /// Adds others' sums to these.
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.prompt.merge(other.prompt);
        self.completion.merge(other.completion);
        self.total.merge(other.total);
        self.last_at = self.last_at.max(other.last_at);
    }

    /// Takes away what was added before; the newest of the rest stays the newest.
    pub(crate) fn take_away(&mut self, part: &Self) {
        self.requests -= part.requests;
        self.prompt.take_away(part.prompt);
        self.completion.take_away(part.completion);
        self.total.take_away(part.total);
    }
}

/// A sum of token figures, and of how many requests it was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// The sum of the measured figures.
    pub sum: u64,
    /// How many requests had the figure measured.
    pub count: u64,
}

impl Measured {
    /// The sum, or nothing if nothing was measured: unmeasured is not zero.
    pub fn get(self) -> Option<u64> {
        (self.count > 0).then_some(self.sum)
    }

    fn of(figure: Option<u32>) -> Self {
        Self { sum: figure.unwrap_or(0).into(), count: figure.is_some().into() }
    }

    fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }

    fn take_away(&mut self, part: Self) {
        self.sum -= part.sum;
        self.count -= part.count;
    }
}

/// How long a roll-up's stretch of time is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Span {
    Hour,
    Day,
    /// Eight days.
    Block,
}

impl Span {
    pub(crate) const fn seconds(self) -> u64 {
        match self {
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Block => 8 * 86_400,
        }
    }

    /// The start of the stretch that holds a time, both in seconds since 1970.
    pub(crate) fn start_of(self, seconds: u64) -> u64 {
        seconds - seconds % self.seconds()
    }

    /// The boundary between two stretches that is nearest to a time.
    fn nearest_to(self, seconds: u64) -> u64 {
        self.start_of(seconds + self.seconds() / 2)
    }
}

/// What a roll-up is about. `key: None` is over all keys together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RollupKey {
    pub(crate) span: Span,
    pub(crate) key: Option<KeyId>,
    pub(crate) start: u64,
    pub(crate) outcome: Outcome,
}

/// What a group of rows adds to the roll-ups, in the order in which they are to be written.
#[derive(Debug, Default)]
pub(crate) struct Rollups(BTreeMap<RollupKey, (Figures, Latencies)>);

impl Rollups {
    /// Adds one recorded request.
    pub(crate) fn add(&mut self, entry: &Entry) {
        let figures = Figures {
            requests: 1,
            prompt: Measured::of(entry.usage.prompt),
            completion: Measured::of(entry.usage.completion),
            total: Measured::of(entry.usage.total),
            last_at: entry.request_id.unix_micros() / 1000,
        };
        let timings = &entry.timings;
        let phases = [
            (Phase::Total, Some(timings.total)),
            (Phase::Queue, timings.queue),
            (Phase::Search, timings.search),
            (Phase::Inference, timings.inference),
        ];
        for rollup in rollups_of(entry) {
            let (sums, latencies) = self.0.entry(rollup).or_default();
            sums.merge(&figures);
            phases.iter().for_each(|(phase, time)| time.iter().for_each(|&time| latencies.add(*phase, time)));
        }
    }

    /// Adds how long it took to make a request durable, known only after its own transaction.
    pub(crate) fn add_persist(&mut self, entry: &Entry, persist: Duration) {
        for rollup in rollups_of(entry) {
            self.0.entry(rollup).or_default().1.add(Phase::Persist, persist);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RollupKey, &Figures, &Latencies)> {
        self.0.iter().map(|(key, (figures, latencies))| (key, figures, latencies))
    }
}

/// Every roll-up that a request counts in: its key by the hour, the day and the block, and all keys by the hour.
fn rollups_of(entry: &Entry) -> [RollupKey; 4] {
    let seconds = entry.request_id.unix_seconds();
    let rollup = |span: Span, key| RollupKey { span, key, start: span.start_of(seconds), outcome: entry.outcome };
    let key = Some(entry.key);
    [rollup(Span::Hour, None), rollup(Span::Hour, key), rollup(Span::Day, key), rollup(Span::Block, key)]
}

/// A stretch of roll-ups that takes part in a sum: those of a span whose starts lie in a range, added or taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) span: Span,
    pub(crate) starts: Range<u64>,
    pub(crate) added: bool,
}

/// The stretches that make up the time from an hour's start to now, in seconds since 1970: blocks from the boundary
/// nearest to it, and what lies between, in days and then in hours, added or taken away. So few roll-ups are read,
/// however long the time.
pub(crate) fn stretches(from_hour: u64) -> [Stretch; 3] {
    let (block, day) = (Span::Block.nearest_to(from_hour), Span::Day.nearest_to(from_hour));
    let between = |span, from: u64, to: u64| match from <= to {
        true => Stretch { span, starts: from..to, added: true },
        false => Stretch { span, starts: to..from, added: false },
    };
    [between(Span::Block, block, i64::MAX as u64), between(Span::Day, day, block), between(Span::Hour, from_hour, day)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEYS: [&str; 3] = ["000000000001", "000000000002", "000000000003"];

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let token = || proptest::option::of(0u32..1000);
        let entry = (0u64..20 * 86_400, 0..3usize, 0..2usize, token(), token(), token(), 0u64..1 << 30);
        proptest::collection::vec(entry, 0..50).prop_map(|all| {
            let entry =
                |(second, key, outcome, prompt, completion, total, micros): (_, usize, usize, _, _, _, _)| Entry {
                    request_id: RequestId::at_micros(second * 1_000_000, 7),
                    key: KEYS[key].parse().unwrap(),
                    outcome: [
                        Outcome { status: 200, code: None },
                        Outcome { status: 502, code: Some("inference_error") },
                    ][outcome],
                    usage: TokenUsage { prompt, completion, total },
                    timings: Timings { total: Duration::from_micros(micros), ..Timings::default() },
                };
            all.into_iter().map(entry).collect()
        })
    }

    fn rolled_up(entries: &[Entry]) -> Rollups {
        let mut rollups = Rollups::default();
        entries.iter().for_each(|entry| rollups.add(entry));
        rollups
    }

    fn sum(rollups: &Rollups, wanted: impl Fn(&RollupKey) -> bool) -> (Figures, Latencies) {
        let mut all = (Figures::default(), Latencies::default());
        for (_, figures, latencies) in rollups.iter().filter(|(key, ..)| wanted(key)) {
            all.0.merge(figures);
            all.1.merge(latencies);
        }
        all
    }

    proptest! {
        #[test]
        fn every_way_of_summing_up_gives_the_same(entries in entries()) {
            let rollups = rolled_up(&entries);
            let all_keys = sum(&rollups, |key| key.key.is_none());
            prop_assert_eq!(all_keys.0.requests, entries.len() as u64);
            prop_assert_eq!(&sum(&rollups, |key| key.key.is_some() && key.span == Span::Hour), &all_keys);
            prop_assert_eq!(&sum(&rollups, |key| key.key.is_some() && key.span == Span::Day), &all_keys);
            prop_assert_eq!(&sum(&rollups, |key| key.key.is_some() && key.span == Span::Block), &all_keys);
        }

        #[test]
        fn order_does_not_matter(entries in entries()) {
            let mut reversed = entries.clone();
            reversed.reverse();
            let (one, other) = (rolled_up(&entries), rolled_up(&reversed));
            prop_assert!(one.iter().eq(other.iter()));
        }

        #[test]
        fn blocks_days_and_hours_hold_what_the_hours_hold(entries in entries(), from in 0u64..22 * 24) {
            let from = from * 3600;
            let rollups = rolled_up(&entries);
            let mut told = Figures::default();
            for Stretch { span, starts, added } in stretches(from) {
                let part = sum(&rollups, |key| key.key.is_some() && key.span == span && starts.contains(&key.start)).0;
                if added { told.merge(&part) } else { told.take_away(&part) }
            }
            let hours = sum(&rollups, |key| key.key.is_none() && key.start >= from).0;
            prop_assert_eq!(Figures { last_at: 0, ..told }, Figures { last_at: 0, ..hours });
        }
    }
}
