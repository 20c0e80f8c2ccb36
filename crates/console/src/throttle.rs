//! Sign-in is slowed down for those who keep failing, never locked: an account under attack must still open for its
//! owner. Failures count by network and by account, and decay. How many attempts may wait is limited, in all and for
//! each network, in fair shares.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use admission::FairShare;
use http::StatusCode;
use parking_lot::Mutex;
use store::Email;
use transport::network;

/// Failures that add no delay.
const FREE_FAILURES: f64 = 4.0;
const DELAY_PER_FAILURE: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// After this time half of the failures are forgotten.
const HALF_LIFE: Duration = Duration::from_secs(300);
/// Attempts in flight: those that wait out a delay, wait for their turn or are verified.
const MAX_ATTEMPTS: usize = 128;
const MAX_ATTEMPTS_PER_NETWORK: usize = 8;
/// Networks and accounts; when there are so many, the half with the fewest failures is dropped.
const MAX_TRACKED: usize = 20_000;

/// What failures are counted by. Of a fixed size, whatever was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    Network(IpAddr),
    /// A hash of the e-mail address, keyed so that nobody can find two with the same.
    Account(u64),
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
        for subject in subjects {
            if self.counts.len() >= MAX_TRACKED && !self.counts.contains_key(subject) {
                self.drop_half(now);
            }
            let failures = self.counts.get(subject).map_or(0.0, |count| count.decayed(now)) + 1.0;
            self.counts.insert(*subject, FailureCount { failures, at: now });
        }
    }

    /// Keeps the half with the most failures.
    fn drop_half(&mut self, now: Duration) {
        let kept = self.counts.len() / 2;
        let mut failures: Vec<_> = self.counts.values().map(|count| count.decayed(now)).collect();
        failures.sort_unstable_by(|a, b| f64::total_cmp(b, a));
        let Some(&least) = failures.get(kept) else { return };
        let mut equal = kept - failures.partition_point(|count| *count > least);
        self.counts.retain(|_, count| {
            let count = count.decayed(now);
            if count == least && equal > 0 {
                equal -= 1;
                return true;
            }
            count > least
        });
    }

    /// Clears the network alone: somebody else may still be guessing the account's password.
    fn succeeded(&mut self, network: Subject) {
        self.counts.remove(&network);
    }
}

pub(crate) struct SignInThrottle {
    throttle: Mutex<Throttle>,
    attempts: Mutex<FairShare<IpAddr>>,
    account_hasher: RandomState,
    start: Instant,
}

impl Default for SignInThrottle {
    fn default() -> Self {
        Self {
            throttle: Mutex::default(),
            attempts: Mutex::new(FairShare::new(MAX_ATTEMPTS)),
            account_hasher: RandomState::new(),
            start: Instant::now(),
        }
    }
}

/// Why an attempt is refused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// By other attempts of its own network.
    Network,
    /// By attempts of others.
    Everyone,
}

impl Crowded {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Network => StatusCode::TOO_MANY_REQUESTS,
            Self::Everyone => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// For the person who is refused.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Network => "Too many attempts from your address. Please try again in a few seconds.",
            Self::Everyone => "Too many people are signing in right now. Please try again in a few seconds.",
        }
    }
}

impl SignInThrottle {
    /// An attempt to guess an account's password, after the delay that earlier failures impose. Without an account only
    /// the network's failures count.
    pub(crate) async fn begin(&self, address: IpAddr, account: Option<&Email>) -> Result<Attempt<'_>, Crowded> {
        let mut attempt = self.enter(address)?;
        attempt.account = account.map(|email| Subject::Account(self.account_hasher.hash_one(email.as_str())));
        let delay = self.throttle.lock().delay(&attempt.subjects(), self.start.elapsed());
        tokio::time::sleep(delay).await;
        Ok(attempt)
    }

    /// For a password that is hashed but not guessed.
    pub(crate) fn enter(&self, address: IpAddr) -> Result<Attempt<'_>, Crowded> {
        let network = network(address);
        let mut attempts = self.attempts.lock();
        let held = attempts.held(&network);
        if held < MAX_ATTEMPTS_PER_NETWORK && attempts.enter(network) {
            return Ok(Attempt { throttle: self, network, account: None });
        }
        Err(if held > 0 { Crowded::Network } else { Crowded::Everyone })
    }
}

/// An attempt in flight, counted while it exists. Only with one is a password hashed.
pub(crate) struct Attempt<'a> {
    throttle: &'a SignInThrottle,
    network: IpAddr,
    account: Option<Subject>,
}

impl Attempt<'_> {
    pub(crate) fn network(&self) -> IpAddr {
        self.network
    }

    pub(crate) fn failed(self) {
        self.throttle.throttle.lock().failed(&self.subjects(), self.throttle.start.elapsed());
    }

    pub(crate) fn succeeded(self) {
        self.throttle.throttle.lock().succeeded(Subject::Network(self.network));
    }

    fn subjects(&self) -> Vec<Subject> {
        [Subject::Network(self.network)].into_iter().chain(self.account).collect()
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.throttle.attempts.lock().leave(&self.network);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn subject(name: u8) -> Subject {
        Subject::Account(name.into())
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
        throttle.succeeded(subject(1));
        assert!(throttle.delay(&[subject(1)], Duration::ZERO).is_zero());
    }

    #[test]
    fn what_is_tracked_has_a_hard_limit_and_those_who_fail_most_are_kept() {
        let mut throttle = Throttle::default();
        let guesser = [Subject::Account(u64::MAX)];
        (0..20).for_each(|_| throttle.failed(&guesser, Duration::ZERO));
        // All fail so often that none of them is forgotten by itself.
        for _ in 0..3 {
            for account in 0..MAX_TRACKED as u64 * 2 {
                throttle.failed(&[Subject::Account(account)], Duration::ZERO);
                assert!(throttle.counts.len() <= MAX_TRACKED);
            }
        }
        assert_eq!(throttle.delay(&guesser, Duration::ZERO), MAX_DELAY);
    }

    #[tokio::test]
    async fn a_64_is_one_visitor_and_leaves_room_for_others() {
        let throttle = SignInThrottle::default();
        let of = |prefix: &str| -> Vec<_> {
            let addresses = (1..=MAX_ATTEMPTS * 2).map(|last| format!("{prefix}::{last:x}").parse().unwrap());
            addresses.filter_map(|address| throttle.enter(address).ok()).collect()
        };
        let held = of("2001:db8:0:1");
        assert_eq!(held.len(), MAX_ATTEMPTS_PER_NETWORK);
        assert_eq!(throttle.enter("2001:db8:0:1:ffff::1".parse().unwrap()).err(), Some(Crowded::Network));
        assert_eq!(of("2001:db8:0:2").len(), MAX_ATTEMPTS_PER_NETWORK);
        drop(held);
        assert_eq!(throttle.attempts.lock().held(&"2001:db8:0:1::".parse().unwrap()), 0);
    }

    #[tokio::test]
    async fn attempts_in_flight_have_a_hard_limit() {
        let throttle = SignInThrottle::default();
        let enter = |number: u32| throttle.enter(std::net::Ipv4Addr::from(number).into());
        let held: Vec<_> = (0..1000).filter_map(|number| enter(number).ok()).collect();
        assert_eq!(held.len(), MAX_ATTEMPTS);
        assert_eq!(enter(1000).err(), Some(Crowded::Everyone));
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
