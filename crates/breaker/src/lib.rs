//! A circuit breaker for one remote server, pure: time comes in as milliseconds on any clock that does not go back.
//!
//! Some failures in a row open it; then one request at a time may try, not before a growing pause is over. A success
//! closes it.

/// Failures in a row that open the breaker.
const TOLERATED: u32 = 3;
const FIRST_PAUSE: u64 = 500;
const LONGEST_PAUSE: u64 = 15_000;

/// Whether a server is to be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
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

impl Breaker {
    /// Whether the server counts as working.
    pub fn is_closed(&self) -> bool {
        self.open.is_none()
    }

    /// Whether a request may be sent now.
    pub fn allows(&self, now: u64) -> bool {
        self.open.as_ref().is_none_or(|open| !open.trying && open.until <= now)
    }

    /// Whether a request may be sent when nobody else is left: no pause, but still one at a time.
    pub fn allows_as_last_resort(&self) -> bool {
        self.open.as_ref().is_none_or(|open| !open.trying)
    }

    /// When the next try is allowed; 0 while closed.
    pub fn retry_at(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.until)
    }

    /// A request is being sent.
    pub fn begin(&mut self) {
        if let Some(open) = &mut self.open {
            open.trying = true;
        }
    }

    /// A request has ended.
    pub fn end(&mut self, verdict: Verdict, now: u64) {
        match verdict {
            Verdict::Good => *self = Self::default(),
            Verdict::Unclear => {
                if let Some(open) = &mut self.open {
                    open.trying = false;
                }
            }
            Verdict::Bad => {
                self.failures = self.failures.saturating_add(1);
                let pause = match &self.open {
                    Some(open) => (open.pause * 2).min(LONGEST_PAUSE),
                    None => FIRST_PAUSE,
                };
                if self.failures >= TOLERATED {
                    self.open = Some(Open { until: now + pause, pause, trying: false });
                }
            }
        }
    }

    /// The server answers health checks: if the breaker is open, a request may try at once.
    pub fn looks_alive(&mut self) {
        if let Some(open) = &mut self.open {
            open.until = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn opens_after_failures_in_a_row_and_lets_one_request_try() {
        let mut breaker = Breaker::default();
        for _ in 0..TOLERATED {
            assert!(breaker.allows(0));
            breaker.end(Verdict::Bad, 0);
        }
        assert!(!breaker.allows(FIRST_PAUSE - 1));
        assert!(breaker.allows_as_last_resort());
        assert!(breaker.allows(FIRST_PAUSE));
        breaker.begin();
        assert!(!breaker.allows(FIRST_PAUSE) && !breaker.allows_as_last_resort(), "one at a time");
        breaker.end(Verdict::Bad, FIRST_PAUSE);
        assert!(!breaker.allows(FIRST_PAUSE * 3 - 1), "the pause grows");
        assert!(breaker.allows(FIRST_PAUSE * 3));
        breaker.looks_alive();
        assert!(breaker.allows(FIRST_PAUSE));
        breaker.begin();
        breaker.end(Verdict::Good, FIRST_PAUSE);
        assert!(breaker.is_closed());
    }

    proptest! {
        #[test]
        fn a_success_always_closes_and_a_pause_is_never_endless(verdicts in proptest::collection::vec(0..3u8, 0..60)) {
            let mut breaker = Breaker::default();
            let mut now = 0;
            for verdict in verdicts {
                now += 10;
                breaker.begin();
                breaker.end([Verdict::Good, Verdict::Bad, Verdict::Unclear][usize::from(verdict)], now);
                prop_assert!(breaker.allows(now + LONGEST_PAUSE));
                prop_assert!(breaker.allows_as_last_resort());
                if verdict == 0 {
                    prop_assert!(breaker.is_closed());
                }
            }
        }
    }
}
