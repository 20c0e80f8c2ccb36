//! What is to be said about the members, for operators.

use std::time::Duration;

use crate::balance::Load;
use crate::counters::FailureCounts;
use crate::member::Member;

pub use breaker::State as BreakerState;

/// What is to be said about one member. Counters only grow for as long as the process runs, also if the member leaves
/// and comes back; times are decayed means over the last few seconds.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// Its base URL; and its address, if its name has several.
    pub url: String,
    /// Whether it counts as working.
    pub healthy: bool,
    /// Whether a request would be sent to it: it works, or one may try whether it does again.
    pub available: bool,
    /// Requests under way.
    pub in_flight: usize,
    /// The name of its model, if it said one.
    pub model: Option<String>,
    /// Requests that it answered properly.
    pub completed: u64,
    /// Requests that it did not.
    pub failures: FailureCounts,
    /// Requests for which another member was asked after this one.
    pub retried: u64,
    /// The time for a completion of late.
    pub latency: Option<Duration>,
    /// The time for a token of a completion of late.
    pub latency_per_token: Option<Duration>,
    /// The part of a full share that it gets: 1, or less for one that is slow, down to 0 for one that hangs.
    pub share: f64,
    /// How its breaker is.
    pub breaker: BreakerState,
    /// How long it will still be avoided because it has said that it is full.
    pub full_for: Option<Duration>,
    /// Whether it only finishes what it has.
    pub draining: bool,
}

impl MemberStatus {
    pub(crate) fn of(member: &Member, load: &Load, now: u64) -> Self {
        let time = |ms: f64| Duration::from_secs_f64(ms / 1000.0);
        Self {
            url: member.name().to_owned(),
            healthy: load.is_healthy(),
            available: load.is_available(now),
            in_flight: load.in_flight(),
            model: member.model().map(|model| model.name),
            completed: member.counters().completed(),
            failures: member.counters().failures(),
            retried: member.counters().retried(),
            latency: load.per_request().map(time),
            latency_per_token: load.per_token().map(time),
            share: load.deserved(),
            breaker: load.breaker(now),
            full_for: load.full_until().checked_sub(now).filter(|left| *left > 0).map(Duration::from_millis),
            draining: load.is_draining(),
        }
    }
}
