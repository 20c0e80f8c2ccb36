//! A circuit breaker for one remote server, pure: time comes in as milliseconds on any clock that does not go back.
//!
//! Some failures in a row open it; then one request at a time may try, not before a growing pause is over. A success
//! closes it. Where nobody else is left to ask, a server that answers its health checks may be tried by many at once.

/// Failures in a row that open the breaker.
const TOLERATED: u32 = 3;
const FIRST_PAUSE: u64 = 500;
const LONGEST_PAUSE: u64 = 15_000;

/// Whether a server is to be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    /// How often it has been opened: by this, those that set out before are told from those that try since.
    openings: u32,
    /// Set while open.
    open: Option<Open>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Open {
    /// The next try is allowed from then on.
    until: u64,
    pause: u64,
    /// A request is trying right now.
    trying: bool,
    /// The last thing heard of the server is a health check that it has passed.
    looks_alive: bool,
}

/// A request that has been sent; its end is told with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    openings: u32,
}

/// What a request taught about its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It answered properly.
    Good,
    /// It did not.
    Bad,
    /// Nothing: the caller hung up, or the server was merely full.
    Unclear,
}

/// How a breaker is, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Requests are sent.
    Closed,
    /// One at a time may try, or does.
    HalfOpen,
    /// Nothing is sent before the pause is over.
    Open,
}

impl Breaker {
    /// The breaker of a server that has not shown yet that it works: one request at a time may try.
    pub fn unproven() -> Self {
        let open = Open { until: 0, pause: FIRST_PAUSE, trying: false, looks_alive: false };
        Self { failures: TOLERATED, openings: 1, open: Some(open) }
    }

    /// Whether the server counts as working.
    pub fn is_closed(&self) -> bool {
        self.open.is_none()
    }

    /// How it is at that time.
    pub fn state(&self, now: u64) -> State {
        match &self.open {
            None => State::Closed,
            Some(open) if open.trying || open.until <= now => State::HalfOpen,
            Some(_) => State::Open,
        }
    }

    /// Whether a request may be sent now.
    pub fn allows(&self, now: u64) -> bool {
        self.open.as_ref().is_none_or(|open| !open.trying && open.until <= now)
    }

    /// Whether a request may be sent when nobody else is left: no pause, but still one at a time, unless the server passes
    /// its health checks. To refuse the rest would then be the greater harm.
    pub fn allows_as_last_resort(&self) -> bool {
        self.open.as_ref().is_none_or(|open| !open.trying || open.looks_alive)
    }

    /// When the next try is allowed; 0 while closed.
    pub fn retry_at(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.until)
    }

    /// A request is being sent.
    pub fn begin(&mut self) -> Attempt {
        if let Some(open) = &mut self.open {
            open.trying = true;
        }
        Attempt { openings: self.openings }
    }

    /// A request has ended. Whoever set out before the breaker opened and failed for the same reason neither lengthens the
    /// pause nor lets a second one try beside the one that does.
    pub fn end(&mut self, attempt: Attempt, verdict: Verdict, now: u64) {
        let is_late = self.open.is_some() && attempt.openings != self.openings;
        match verdict {
            Verdict::Good => self.close(),
            _ if is_late => {}
            Verdict::Unclear => {
                if let Some(open) = &mut self.open {
                    open.trying = false;
                }
            }
            Verdict::Bad => self.fail(now),
        }
    }

    /// The server has shown that it works.
    pub fn close(&mut self) {
        self.failures = 0;
        self.open = None;
    }

    /// The server answers health checks: if the breaker is open, a request may try at once.
    pub fn looks_alive(&mut self) {
        if let Some(open) = &mut self.open {
            open.until = 0;
            open.looks_alive = true;
        }
    }

    /// The server does not answer health checks. While a request tries, that one will tell.
    pub fn looks_dead(&mut self, now: u64) {
        match &mut self.open {
            Some(open) if open.trying => open.looks_alive = false,
            _ => self.fail(now),
        }
    }

    fn fail(&mut self, now: u64) {
        self.failures = self.failures.saturating_add(1);
        let pause = match &self.open {
            Some(open) => (open.pause * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        if self.failures >= TOLERATED {
            self.openings = self.openings.wrapping_add(1);
            self.open = Some(Open { until: now + pause, pause, trying: false, looks_alive: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..TOLERATED {
            assert!(breaker.allows(0));
            let attempt = breaker.begin();
            breaker.end(attempt, Verdict::Bad, 0);
        }
        breaker
    }

    #[test]
    fn opens_after_failures_in_a_row_and_lets_one_request_try() {
        let mut breaker = opened();
        assert!(!breaker.allows(FIRST_PAUSE - 1));
        assert!(breaker.allows_as_last_resort());
        assert!(breaker.allows(FIRST_PAUSE));
        assert_eq!((breaker.state(0), breaker.state(FIRST_PAUSE)), (State::Open, State::HalfOpen));
        let attempt = breaker.begin();
        assert!(!breaker.allows(FIRST_PAUSE) && !breaker.allows_as_last_resort(), "one at a time");
        breaker.end(attempt, Verdict::Bad, FIRST_PAUSE);
        assert!(!breaker.allows(FIRST_PAUSE * 3 - 1), "the pause grows");
        assert!(breaker.allows(FIRST_PAUSE * 3));
        breaker.looks_alive();
        assert!(breaker.allows(FIRST_PAUSE));
        let attempt = breaker.begin();
        breaker.end(attempt, Verdict::Good, FIRST_PAUSE);
        assert!(breaker.is_closed());
    }

    #[test]
    fn as_a_last_resort_many_may_try_a_server_that_looks_alive() {
        let mut breaker = opened();
        breaker.looks_alive();
        let attempts = [breaker.begin(), breaker.begin(), breaker.begin()];
        assert!(!breaker.allows(FIRST_PAUSE), "others come first");
        assert!(breaker.allows_as_last_resort());
        for attempt in attempts {
            breaker.end(attempt, Verdict::Bad, 0);
        }
        assert!(breaker.allows(FIRST_PAUSE * 2), "failing together lengthens the pause once");
        breaker.begin();
        assert!(!breaker.allows_as_last_resort(), "a request knows better than a health check");
    }

    #[test]
    fn those_that_set_out_before_it_opened_change_nothing_but_by_success() {
        let mut breaker = Breaker::default();
        let early = breaker.begin();
        (0..TOLERATED).for_each(|_| breaker.looks_dead(0));
        let open = breaker.clone();
        breaker.end(early, Verdict::Bad, 0);
        breaker.end(early, Verdict::Unclear, 0);
        assert_eq!(breaker, open);
        breaker.begin();
        breaker.end(early, Verdict::Unclear, 0);
        assert!(!breaker.allows(LONGEST_PAUSE), "somebody still tries");
        breaker.end(early, Verdict::Good, 0);
        assert!(breaker.is_closed());
    }

    #[test]
    fn who_is_unproven_is_tried_by_one() {
        let mut breaker = Breaker::unproven();
        assert!(breaker.allows(0) && !breaker.is_closed());
        let attempt = breaker.begin();
        assert!(!breaker.allows(0) && !breaker.allows_as_last_resort());
        breaker.end(attempt, Verdict::Good, 0);
        assert!(breaker.is_closed());
    }

    proptest! {
        #[test]
        fn a_success_always_closes_and_a_pause_is_never_endless(verdicts in proptest::collection::vec(0..3u8, 0..60)) {
            let mut breaker = Breaker::default();
            let mut now = 0;
            for verdict in verdicts {
                now += 10;
                let attempt = breaker.begin();
                breaker.end(attempt, [Verdict::Good, Verdict::Bad, Verdict::Unclear][usize::from(verdict)], now);
                prop_assert!(breaker.allows(now + LONGEST_PAUSE));
                prop_assert!(breaker.allows_as_last_resort());
                if verdict == 0 {
                    prop_assert!(breaker.is_closed());
                }
            }
        }
    }
}
