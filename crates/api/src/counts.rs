//! What is counted about requests while they run. Each thread that serves has counters of its own, made when it starts, so that
//! counting is a few additions to memory that nobody else writes to; whoever reads adds them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use chat::TokenUsage;
use figures::{Distribution, Histogram};
use store::{Outcome, Timings};
use wire::ErrorCode;

use crate::answer::{CLIENT_CLOSED, COMPLETED};

/// By which whole requests are told apart, in microseconds: what OpenTelemetry recommends for language models, and finer
/// below, because a refusal takes no hundredth of a second.
const TOTALS: &[u64] = &[
    1_000, 2_500, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 640_000, 1_280_000, 2_560_000, 5_120_000,
    10_240_000, 20_480_000, 40_960_000, 81_920_000,
];
/// By which phases are told apart, in microseconds.
const PHASES: &[u64] = &[
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
];
/// By which prompts and completions are told apart, in tokens, as OpenTelemetry recommends.
const TOKENS: &[u64] = &[1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536];

const OUTCOMES: usize = 2 + ErrorCode::ALL.len();

/// What a request's time goes into, as operators know it.
pub(crate) const PHASE_NAMES: [&str; 4] = ["queue", "search", "inference", "persist"];

/// Every way in which a search can end.
pub(crate) const SEARCH_OUTCOMES: [&str; 3] = ["found", "nothing", "failed"];

/// How a search ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Searched {
    Found,
    Nothing,
    Failed,
}

/// One thread's counters.
pub(crate) struct Counts {
    ended: [(Outcome, Histogram); OUTCOMES],
    phases: [Histogram; PHASE_NAMES.len()],
    prompt: Histogram,
    completion: Histogram,
    searches: [AtomicU64; SEARCH_OUTCOMES.len()],
}

/// What all threads together have counted.
pub(crate) struct Totals {
    /// How long requests took, by how they ended.
    pub(crate) ended: Vec<(Outcome, Distribution)>,
    /// In the order of their names.
    pub(crate) phases: [Distribution; PHASE_NAMES.len()],
    pub(crate) prompt: Distribution,
    pub(crate) completion: Distribution,
    /// In the order of their names.
    pub(crate) searches: [u64; SEARCH_OUTCOMES.len()],
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            ended: outcomes().map(|outcome| (outcome, Histogram::new(TOTALS))),
            phases: PHASE_NAMES.map(|_| Histogram::new(PHASES)),
            prompt: Histogram::new(TOKENS),
            completion: Histogram::new(TOKENS),
            searches: Default::default(),
        }
    }
}

impl Counts {
    /// A request that has ended.
    pub(crate) fn end(&self, outcome: Outcome, total: Duration, timings: &Timings, persist: Option<Duration>) {
        if let Some((_, ended)) = self.ended.iter().find(|(known, _)| *known == outcome) {
            ended.add(micros(total));
        }
        let phases = [timings.queue, timings.search, timings.inference, persist];
        for (phase, took) in self.phases.iter().zip(phases) {
            if let Some(took) = took {
                phase.add(micros(took));
            }
        }
    }

    /// What a runtime measured; what it did not is not counted.
    pub(crate) fn tokens(&self, usage: &TokenUsage) {
        for (histogram, tokens) in [(&self.prompt, usage.prompt), (&self.completion, usage.completion)] {
            if let Some(tokens) = tokens {
                histogram.add(tokens.into());
            }
        }
    }

    /// A search that has ended. One whose caller has gone meanwhile says nothing, and is not counted.
    pub(crate) fn searched(&self, how: Searched) {
        self.searches[how as usize].fetch_add(1, Relaxed);
    }
}

impl Totals {
    /// Adds up what each thread has counted.
    pub(crate) fn of<'a>(threads: impl IntoIterator<Item = &'a Counts>) -> Self {
        let mut totals = Self {
            ended: outcomes().map(|outcome| (outcome, Distribution::none(TOTALS))).into(),
            phases: PHASE_NAMES.map(|_| Distribution::none(PHASES)),
            prompt: Distribution::none(TOKENS),
            completion: Distribution::none(TOKENS),
            searches: Default::default(),
        };
        for counts in threads {
            totals.ended.iter_mut().zip(&counts.ended).for_each(|((_, sum), (_, more))| sum.merge(&more.read()));
            totals.phases.iter_mut().zip(&counts.phases).for_each(|(sum, more)| sum.merge(&more.read()));
            totals.prompt.merge(&counts.prompt.read());
            totals.completion.merge(&counts.completion.read());
            totals.searches.iter_mut().zip(&counts.searches).for_each(|(sum, more)| *sum += more.load(Relaxed));
        }
        totals
    }
}

/// Every way in which a request can end.
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
