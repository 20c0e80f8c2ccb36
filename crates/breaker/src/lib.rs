//! A circuit breaker for one remote server. Pure: times are arguments, in milliseconds of any monotonic clock.
//!
//! Consecutive failures open it. After a growing backoff it is half-open: one request at a time may probe the server,
//! and a success closes it. If there is no other server, several requests at the same time may probe one that passes its
//! health checks.

/// Consecutive failures that open the breaker.
const FAILURE_THRESHOLD: u32 = 3;
const INITIAL_BACKOFF_MS: u64 = 500;
const MAX_BACKOFF_MS: u64 = 15_000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    /// The number of times it has opened, to distinguish probes from requests that were sent before.
    generation: u32,
    /// Set while open or half-open.
    open: Option<Open>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Open {
    /// When the next probe is allowed.
    until: u64,
    backoff: u64,
    /// Whether a probe is in flight.
    probing: bool,
    /// Whether the server has passed a health check since its last failure.
    passes_health_checks: bool,
}

/// A request in flight. Must be passed to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallToken {
    generation: u32,
}

/// The outcome of a request, as a sign of the server's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Bad,
    /// The client disconnected, or the server was saturated.
    Unclear,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Closed,
    /// A probe is allowed or in flight.
    HalfOpen,
    /// Nothing is sent until the backoff is over.
    Open,
}

impl Breaker {
    /// For a new server, which must complete a probe before it gets many requests.
    pub fn half_open() -> Self {
        let open = Open { until: 0, backoff: INITIAL_BACKOFF_MS, probing: false, passes_health_checks: false };
        Self { failures: FAILURE_THRESHOLD, generation: 1, open: Some(open) }
    }

    pub fn is_closed(&self) -> bool {
        self.open.is_none()
    }

    pub fn state(&self, now: u64) -> State {
        match &self.open {
            None => State::Closed,
            Some(open) if open.probing || open.until <= now => State::HalfOpen,
            Some(_) => State::Open,
        }
    }

    pub fn allows(&self, now: u64) -> bool {
        self.open.as_ref().is_none_or(|open| !open.probing && open.until <= now)
    }

    /// Whether a request may be sent if there is no other server. It need not wait for the backoff. One at a time, unless
    /// the server passes health checks: then rejecting the other requests would do more harm.
    pub fn allows_as_last_resort(&self) -> bool {
        self.open.as_ref().is_none_or(|open| !open.probing || open.passes_health_checks)
    }

    /// When the next probe is allowed; 0 while closed.
    pub fn retry_at(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.until)
    }

    /// Whether it has opened since this request was sent.
    pub fn has_opened_since(&self, attempt: CallToken) -> bool {
        self.open.is_some() && attempt.generation != self.generation
    }

    /// Whether the breaker is closed, or the server has passed a health check since its last failure.
    pub fn passes_health_checks(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.passes_health_checks)
    }

    pub fn begin(&mut self) -> CallToken {
        if let Some(open) = &mut self.open {
            open.probing = true;
        }
        CallToken { generation: self.generation }
    }

    /// Records the end of a request. A request that was sent before the breaker opened neither lengthens the backoff
    /// nor allows a second probe: it failed for the same reason.
    pub fn end(&mut self, attempt: CallToken, verdict: Verdict, now: u64) {
        let is_late = self.has_opened_since(attempt);
        match verdict {
            Verdict::Good => self.close(),
            _ if is_late => {}
            Verdict::Unclear => {
                if let Some(open) = &mut self.open {
                    open.probing = false;
                }
            }
            Verdict::Bad => self.fail(now),
        }
    }

    pub fn close(&mut self) {
        self.failures = 0;
        self.open = None;
    }

    /// Allows a probe immediately if the breaker is open.
    pub fn health_check_passed(&mut self) {
        if let Some(open) = &mut self.open {
            open.until = 0;
            open.passes_health_checks = true;
        }
    }

    /// While a probe is in flight, its result decides.
    pub fn health_check_failed(&mut self, now: u64) {
        match &mut self.open {
            Some(open) if open.probing => open.passes_health_checks = false,
            _ => self.fail(now),
        }
    }

    fn fail(&mut self, now: u64) {
        self.failures = self.failures.saturating_add(1);
        let backoff = match &self.open {
            Some(open) => (open.backoff * 2).min(MAX_BACKOFF_MS),
            None => INITIAL_BACKOFF_MS,
        };
        if self.failures >= FAILURE_THRESHOLD {
            self.generation = self.generation.wrapping_add(1);
            self.open = Some(Open { until: now + backoff, backoff, probing: false, passes_health_checks: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURE_THRESHOLD {
            assert!(breaker.allows(0));
            let attempt = breaker.begin();
            breaker.end(attempt, Verdict::Bad, 0);
        }
        breaker
    }

    #[test]
    fn opens_after_consecutive_failures_and_allows_one_probe() {
        let mut breaker = opened();
        assert!(!breaker.allows(INITIAL_BACKOFF_MS - 1));
        assert!(breaker.allows_as_last_resort());
        assert!(breaker.allows(INITIAL_BACKOFF_MS));
        assert_eq!((breaker.state(0), breaker.state(INITIAL_BACKOFF_MS)), (State::Open, State::HalfOpen));
        let attempt = breaker.begin();
        assert!(!breaker.allows(INITIAL_BACKOFF_MS) && !breaker.allows_as_last_resort(), "one at a time");
        breaker.end(attempt, Verdict::Bad, INITIAL_BACKOFF_MS);
        assert!(!breaker.allows(INITIAL_BACKOFF_MS * 3 - 1), "the backoff grows");
        assert!(breaker.allows(INITIAL_BACKOFF_MS * 3));
        breaker.health_check_passed();
        assert!(breaker.allows(INITIAL_BACKOFF_MS));
        let attempt = breaker.begin();
        breaker.end(attempt, Verdict::Good, INITIAL_BACKOFF_MS);
        assert!(breaker.is_closed());
    }

    #[test]
    fn as_a_last_resort_several_requests_may_probe_a_server_that_passes_health_checks() {
        let mut breaker = opened();
        breaker.health_check_passed();
        let attempts = [breaker.begin(), breaker.begin(), breaker.begin()];
        assert!(!breaker.allows(INITIAL_BACKOFF_MS), "other servers come first");
        assert!(breaker.allows_as_last_resort());
        for attempt in attempts {
            breaker.end(attempt, Verdict::Bad, 0);
        }
        assert!(breaker.allows(INITIAL_BACKOFF_MS * 2), "concurrent failures lengthen the backoff once");
        breaker.begin();
        assert!(!breaker.allows_as_last_resort(), "a failed request outweighs an earlier health check");
    }

    #[test]
    fn requests_sent_before_it_opened_have_no_effect_unless_they_succeed() {
        let mut breaker = Breaker::default();
        let early = breaker.begin();
        (0..FAILURE_THRESHOLD).for_each(|_| breaker.health_check_failed(0));
        assert!(breaker.has_opened_since(early) && !breaker.passes_health_checks());
        let open = breaker.clone();
        breaker.end(early, Verdict::Bad, 0);
        breaker.end(early, Verdict::Unclear, 0);
        assert_eq!(breaker, open);
        let probe = breaker.begin();
        assert!(!breaker.has_opened_since(probe));
        breaker.end(early, Verdict::Unclear, 0);
        assert!(!breaker.allows(MAX_BACKOFF_MS), "a probe is still in flight");
        breaker.end(early, Verdict::Good, 0);
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_new_server_is_probed_by_one_request() {
        let mut breaker = Breaker::half_open();
        assert!(breaker.allows(0) && !breaker.is_closed());
        let attempt = breaker.begin();
        assert!(!breaker.allows(0) && !breaker.allows_as_last_resort());
        breaker.end(attempt, Verdict::Good, 0);
        assert!(breaker.is_closed());
    }

    proptest! {
        #[test]
        fn a_success_always_closes_and_the_backoff_is_bounded(verdicts in proptest::collection::vec(0..3u8, 0..60)) {
            let mut breaker = Breaker::default();
            let mut now = 0;
            for verdict in verdicts {
                now += 10;
                let attempt = breaker.begin();
                breaker.end(attempt, [Verdict::Good, Verdict::Bad, Verdict::Unclear][usize::from(verdict)], now);
                prop_assert!(breaker.allows(now + MAX_BACKOFF_MS));
                prop_assert!(breaker.allows_as_last_resort());
                if verdict == 0 {
                    prop_assert!(breaker.is_closed());
                }
            }
        }
    }
}
