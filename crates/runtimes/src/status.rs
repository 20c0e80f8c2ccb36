//! The state of members, for metrics and the console.

use std::time::Duration;

use crate::balance::MemberState;
use crate::counters::{Event, FailureCounts};
use crate::member::Member;

pub use breaker::State as BreakerState;

/// Counters grow for as long as the process runs, even if the member leaves and joins again. Latencies are decayed
/// means over the last few seconds.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// With the address, if the host has several.
    pub url: String,
    pub healthy: bool,
    /// Whether a request may be sent to it, if only as a probe.
    pub available: bool,
    pub in_flight: usize,
    pub model: Option<String>,
    /// The devices of our engine, if they are not the CPU alone.
    pub device: Option<String>,
    pub completed: u64,
    pub failures: FailureCounts,
    /// Requests that were retried with another member after this one failed.
    pub retried: u64,
    /// Requests that were moved to another member because they waited too long here.
    pub moved: u64,
    /// The number of unexpected responses: without a request, or for another request.
    pub unexpected: u64,
    /// Per completion.
    pub latency: Option<Duration>,
    pub latency_per_token: Option<Duration>,
    /// From 0 to 1. Less than 1 if the member is slow, 0 if it hangs.
    pub share: f64,
    pub breaker: BreakerState,
    /// How long it will still be avoided because it reported a lack of capacity.
    pub saturated_for: Option<Duration>,
    /// It has left the pool and finishes its requests.
    pub draining: bool,
}

impl MemberStatus {
    pub(crate) fn from_member(member: &Member, state: &MemberState, now: u64) -> Self {
        let time = |ms: f64| Duration::from_secs_f64(ms / 1000.0);
        let (model, device) = member.model().map(|model| (model.name, model.device)).unzip();
        Self {
            url: member.name().to_owned(),
            healthy: state.is_healthy(),
            available: state.is_available(now),
            in_flight: state.in_flight(),
            model,
            device: device.flatten(),
            completed: member.counters().get(Event::Completed),
            failures: member.counters().failures(),
            retried: member.counters().get(Event::Retried),
            moved: member.counters().get(Event::Moved),
            unexpected: member.counters().get(Event::Unexpected),
            latency: state.per_request().map(time),
            latency_per_token: state.per_token().map(time),
            share: state.share(),
            breaker: state.breaker(now),
            saturated_for: state.saturated_until().checked_sub(now).filter(|left| *left > 0).map(Duration::from_millis),
            draining: state.is_draining(),
        }
    }
}
