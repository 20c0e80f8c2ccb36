//! Request counters. Each worker has its own, allocated when it starts, so counting is a few additions to memory that
//! no other thread writes to; a reader adds them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use chat::TokenUsage;
use histogram::{Histogram, Snapshot};
use store::{Outcome, Timings};
use wire::ErrorCode;

use crate::error::{CLIENT_CLOSED, COMPLETED};

/// Bucket bounds in microseconds: what OpenTelemetry recommends for language models, and finer ones for errors, which
/// take less than 10 ms.
const TOTAL_BOUNDS: &[u64] = &[
    1_000, 2_500, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 640_000, 1_280_000, 2_560_000, 5_120_000,
    10_240_000, 20_480_000, 40_960_000, 81_920_000,
];
/// Bucket bounds in microseconds.
const PHASE_BOUNDS: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000, 60_000_000, 120_000_000,
];
/// Bucket bounds in tokens, as OpenTelemetry recommends.
const TOKEN_BOUNDS: &[u64] = &[1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536];

const OUTCOMES: usize = 2 + ErrorCode::ALL.len();

/// The label values of a request's phases.
pub const PHASE_NAMES: [&str; 4] = ["queue", "search", "inference", "persist"];

pub const SEARCH_OUTCOMES: [&str; 3] = ["found", "nothing", "failed"];

/// In the order of `SEARCH_OUTCOMES`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SearchOutcome {
    Found,
    Nothing,
    Failed,
}

pub(crate) struct Counters {
    ended: [(Outcome, Histogram); OUTCOMES],
    phases: [Histogram; PHASE_NAMES.len()],
    prompt: Histogram,
    completion: Histogram,
    searches: [AtomicU64; SEARCH_OUTCOMES.len()],
}

/// The sums over all workers.
pub struct Totals {
    /// Durations by outcome.
    pub ended: Vec<(Outcome, Snapshot)>,
    /// In the order of `PHASE_NAMES`.
    pub phases: [Snapshot; PHASE_NAMES.len()],
    pub prompt: Snapshot,
    pub completion: Snapshot,
    /// In the order of `SEARCH_OUTCOMES`.
    pub searches: [u64; SEARCH_OUTCOMES.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            ended: outcomes().map(|outcome| (outcome, Histogram::new(TOTAL_BOUNDS))),
            phases: PHASE_NAMES.map(|_| Histogram::new(PHASE_BOUNDS)),
            prompt: Histogram::new(TOKEN_BOUNDS),
            completion: Histogram::new(TOKEN_BOUNDS),
            searches: Default::default(),
        }
    }
}

impl Counters {
    pub(crate) fn end(&self, outcome: Outcome, total: Duration, timings: &Timings, persist: Option<Duration>) {
        if let Some((_, ended)) = self.ended.iter().find(|(known, _)| *known == outcome) {
            ended.record(micros(total));
        }
        let phases = [timings.queue, timings.search, timings.inference, persist];
        for (phase, took) in self.phases.iter().zip(phases) {
            if let Some(took) = took {
                phase.record(micros(took));
            }
        }
    }

    /// Counts the tokens that a runtime measured.
    pub(crate) fn tokens(&self, usage: &TokenUsage) {
        for (histogram, tokens) in [(&self.prompt, usage.prompt), (&self.completion, usage.completion)] {
            if let Some(tokens) = tokens {
                histogram.record(tokens.into());
            }
        }
    }

    /// Counts a search that has ended; one whose client disconnected meanwhile is not counted.
    pub(crate) fn search(&self, outcome: SearchOutcome) {
        self.searches[outcome as usize].fetch_add(1, Relaxed);
    }
}

impl Totals {
    pub(crate) fn from_counters<'a>(workers: impl IntoIterator<Item = &'a Counters>) -> Self {
        let mut totals = Self {
            ended: outcomes().map(|outcome| (outcome, Snapshot::empty(TOTAL_BOUNDS))).into(),
            phases: PHASE_NAMES.map(|_| Snapshot::empty(PHASE_BOUNDS)),
            prompt: Snapshot::empty(TOKEN_BOUNDS),
            completion: Snapshot::empty(TOKEN_BOUNDS),
            searches: Default::default(),
        };
        for counts in workers {
            totals.ended.iter_mut().zip(&counts.ended).for_each(|((_, sum), (_, more))| sum.merge(&more.snapshot()));
            totals.phases.iter_mut().zip(&counts.phases).for_each(|(sum, more)| sum.merge(&more.snapshot()));
            totals.prompt.merge(&counts.prompt.snapshot());
            totals.completion.merge(&counts.completion.snapshot());
            totals.searches.iter_mut().zip(&counts.searches).for_each(|(sum, more)| *sum += more.load(Relaxed));
        }
        totals
    }
}

fn outcomes() -> [Outcome; OUTCOMES] {
    let mut outcomes = [CLIENT_CLOSED; OUTCOMES];
    outcomes[0] = COMPLETED;
    for (outcome, code) in outcomes[1..].iter_mut().zip(ErrorCode::ALL) {
        *outcome = Outcome { status: code.status(), code: Some(code.as_str()) };
    }
    outcomes
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
