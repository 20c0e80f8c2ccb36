//! Requests per minute, by the generic cell rate algorithm (GCRA): a bucket that holds a minute's requests and empties
//! evenly. One number per bucket, the same rule for small limits and large ones. Pure.

use std::time::Duration;

use chat::Timestamp;

const MINUTE_NANOS: u64 = 60_000_000_000;

/// The time at which the bucket will be empty, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rate(u64);

impl Rate {
    pub(crate) fn from_column(empty_at: u64) -> Self {
        Self(empty_at)
    }

    pub(crate) fn column(self) -> u64 {
        self.0
    }

    /// The number of requests in the bucket, rounded up.
    pub(crate) fn level(self, now: Timestamp, limit: u64) -> u64 {
        self.filled(now).div_ceil(interval(limit)).min(limit)
    }

    /// The time until one more request may start.
    pub(crate) fn wait(self, now: Timestamp, limit: u64) -> Duration {
        match limit {
            0 => Duration::from_nanos(MINUTE_NANOS),
            limit => Duration::from_nanos((self.filled(now) + interval(limit)).saturating_sub(MINUTE_NANOS)),
        }
    }

    pub(crate) fn start(&mut self, now: Timestamp, limit: u64) {
        self.0 = nanos(now) + self.filled(now) + interval(limit);
    }

    /// Whether the bucket is not empty.
    pub(crate) fn is_of_use(self, now: Timestamp) -> bool {
        self.filled(now) > 0
    }

    /// At most a minute: it would be more if the clock was set back.
    fn filled(self, now: Timestamp) -> u64 {
        self.0.saturating_sub(nanos(now)).min(MINUTE_NANOS)
    }
}

/// The time that one request stays in the bucket.
fn interval(limit: u64) -> u64 {
    (MINUTE_NANOS / limit.max(1)).max(1)
}

fn nanos(time: Timestamp) -> u64 {
    time.as_millis() * 1_000_000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Timestamp = Timestamp::from_seconds(1_800_000_000);

    #[test]
    fn a_limit_of_one_allows_one_request_per_minute() {
        let mut rate = Rate::default();
        assert_eq!(rate.wait(START, 1), Duration::ZERO);
        rate.start(START, 1);
        for (after, wait) in [(0, 60), (1, 59), (59, 1), (60, 0), (3_600, 0)] {
            assert_eq!(rate.wait(START + Duration::from_secs(after), 1), Duration::from_secs(wait), "{after}");
        }
    }

    #[test]
    fn a_limit_of_zero_allows_no_request() {
        assert_eq!(Rate::default().wait(START, 0), Duration::from_secs(60));
    }

    proptest! {
        /// Callers try at random times.
        #[test]
        fn no_more_requests_start_than_the_limit_allows(
            limit in prop_oneof![1..20_u64, 1..2_000_u64],
            pauses in proptest::collection::vec(0..2_000_u64, 1..2_000),
        ) {
            let (mut rate, mut now, mut started) = (Rate::default(), START, 0);
            for pause in pauses {
                now = now + Duration::from_millis(pause);
                let wait = rate.wait(now, limit);
                prop_assert!(wait <= Duration::from_secs(60));
                if wait == Duration::ZERO {
                    rate.start(now, limit);
                    started += 1;
                    prop_assert!(rate.level(now, limit) <= limit);
                }
            }
            let minutes = now.duration_since(START).as_secs_f64() / 60.0;
            prop_assert!(started as f64 <= limit as f64 * (1.0 + minutes) + 1e-6, "{started} in {minutes} minutes");
        }

        #[test]
        fn a_caller_that_waits_as_advised_is_admitted(limit in 1..100_000_u64, attempts in 1..300_usize) {
            let (mut rate, mut now) = (Rate::default(), START);
            for _ in 0..attempts {
                let wait = rate.wait(now, limit);
                now = now + Duration::from_secs(wait.as_secs_f64().ceil() as u64);
                prop_assert_eq!(rate.wait(now, limit), Duration::ZERO);
                rate.start(now, limit);
            }
        }
    }
}
