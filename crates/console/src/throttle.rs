//! Sign-in is slowed down for those who keep failing, never locked: an account under attack must still open for its
//! owner. Failures count by address and by account, and decay.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use transport::network;

/// Failures that add no delay.
const FREE_FAILURES: f64 = 4.0;
const DELAY_PER_FAILURE: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// After this time half of the failures are forgotten.
const HALF_LIFE: Duration = Duration::from_secs(300);
const MAX_WAITING_PER_ADDRESS: usize = 8;
/// Addresses and accounts; beyond this number those with little against them are dropped.
const MAX_TRACKED: usize = 20_000;

/// What failures are counted by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Address(IpAddr),
    Account(String),
}

#[derive(Debug, Clone, Copy)]
struct FailureCount {
    failures: f64,
    at: Duration,
}

impl FailureCount {
    fn decayed(self, now: Duration) -> f64 {
        let age = now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.failures * 0.5_f64.powf(age)
    }
}

/// The rule and its counts, without a clock: `now` is the time since any fixed moment.
#[derive(Debug, Default)]
struct Throttle {
    counts: HashMap<Subject, FailureCount>,
}

impl Throttle {
    fn delay(&self, subjects: &[Subject], now: Duration) -> Duration {
        let failures = subjects.iter().filter_map(|subject| self.counts.get(subject)).map(|count| count.decayed(now));
        DELAY_PER_FAILURE.mul_f64((failures.fold(0.0, f64::max) - FREE_FAILURES).max(0.0)).min(MAX_DELAY)
    }

    fn failed(&mut self, subjects: &[Subject], now: Duration) {
        if self.counts.len() > MAX_TRACKED {
            self.counts.retain(|_, count| count.decayed(now) > 1.0);
        }
        for subject in subjects {
            let failures = self.counts.get(subject).map_or(0.0, |count| count.decayed(now)) + 1.0;
            self.counts.insert(subject.clone(), FailureCount { failures, at: now });
        }
    }

    /// Clears the address alone: somebody else may still be guessing the account's password.
    fn succeeded(&mut self, address: &Subject) {
        self.counts.remove(address);
    }
}

pub(crate) struct SignInThrottle {
    throttle: Mutex<Throttle>,
    /// Attempts in flight by address.
    waiting: Mutex<HashMap<IpAddr, usize>>,
    start: Instant,
}

impl Default for SignInThrottle {
    fn default() -> Self {
        Self { throttle: Mutex::default(), waiting: Mutex::default(), start: Instant::now() }
    }
}

impl SignInThrottle {
    /// Waits out the delay; `None` at once if too many attempts of that address are waiting already.
    pub(crate) async fn begin(&self, address: IpAddr, account: &str) -> Option<Attempt<'_>> {
        let attempt = Attempt::new(self, address, account)?;
        let delay = self.throttle.lock().delay(&attempt.subjects, self.start.elapsed());
        tokio::time::sleep(delay).await;
        Some(attempt)
    }
}

/// One attempt to sign in, counted as waiting while it exists.
pub(crate) struct Attempt<'a> {
    throttle: &'a SignInThrottle,
    address: IpAddr,
    subjects: [Subject; 2],
}

impl<'a> Attempt<'a> {
    fn new(throttle: &'a SignInThrottle, address: IpAddr, account: &str) -> Option<Self> {
        let mut waiting = throttle.waiting.lock();
        let count = waiting.entry(address).or_default();
        if *count >= MAX_WAITING_PER_ADDRESS {
            return None;
        }
        *count += 1;
        let subjects = [Subject::Address(network(address)), Subject::Account(account.to_owned())];
        Some(Self { throttle, address, subjects })
    }

    pub(crate) fn failed(self) {
        self.throttle.throttle.lock().failed(&self.subjects, self.throttle.start.elapsed());
    }

    pub(crate) fn succeeded(self) {
        self.throttle.throttle.lock().succeeded(&self.subjects[0]);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut waiting = self.throttle.waiting.lock();
        if let Some(count) = waiting.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn subject(name: u8) -> Subject {
        Subject::Account(name.to_string())
    }

    #[test]
    fn failures_add_a_delay_and_decay() {
        let mut throttle = Throttle::default();
        let subjects = [subject(1), subject(2)];
        for _ in 0..4 {
            assert_eq!(throttle.delay(&subjects, Duration::ZERO), Duration::ZERO);
            throttle.failed(&subjects, Duration::ZERO);
        }
        throttle.failed(&subjects, Duration::ZERO);
        throttle.failed(&subjects, Duration::ZERO);
        assert_eq!(throttle.delay(&subjects, Duration::ZERO), DELAY_PER_FAILURE * 2);
        assert_eq!(throttle.delay(&[subject(3)], Duration::ZERO), Duration::ZERO, "others are not held up");
        assert_eq!(throttle.delay(&subjects, HALF_LIFE), Duration::ZERO);
        throttle.succeeded(&subject(1));
        assert!(throttle.delay(&[subject(1)], Duration::ZERO).is_zero());
    }

    proptest! {
        #[test]
        fn no_delay_exceeds_the_maximum(attempts in proptest::collection::vec((0..3u8, 0..100u64), 0..500)) {
            let mut throttle = Throttle::default();
            let mut now = Duration::ZERO;
            for (name, gap) in attempts {
                now += Duration::from_millis(gap);
                prop_assert!(throttle.delay(&[subject(name)], now) <= MAX_DELAY);
                throttle.failed(&[subject(name)], now);
            }
        }
    }
}
