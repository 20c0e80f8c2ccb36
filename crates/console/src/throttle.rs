//! Sign-in is slowed down for those who keep failing, never closed: an account that somebody else attacks must still
//! open for its owner. Failures count by address and by account, and fade.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Failures that cost nothing.
const FREE: f64 = 4.0;
/// What every further one adds to the delay, and the longest delay.
const EACH: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(8);
/// After so long, half of the failures are forgotten.
const HALF_LIFE: Duration = Duration::from_secs(300);
/// Tries of one address that may wait at the same time.
const WAITING: usize = 8;
/// Parties that are remembered.
const REMEMBERED: usize = 20_000;

/// Who fails.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    Address(IpAddr),
    Account(String),
}

/// How often somebody has failed lately.
#[derive(Debug, Clone, Copy)]
struct Level {
    failures: f64,
    at: Duration,
}

impl Level {
    fn now(self, now: Duration) -> f64 {
        let age = now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.failures * 0.5_f64.powf(age)
    }
}

/// The rule and its counts; time is since any moment.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    levels: HashMap<Party, Level>,
}

impl Throttle {
    /// How long the next try of these has to wait.
    fn delay(&self, parties: &[Party], now: Duration) -> Duration {
        let worst = parties.iter().filter_map(|party| self.levels.get(party)).map(|level| level.now(now));
        EACH.mul_f64((worst.fold(0.0, f64::max) - FREE).max(0.0)).min(LONGEST)
    }

    fn failed(&mut self, parties: &[Party], now: Duration) {
        if self.levels.len() > REMEMBERED {
            self.levels.retain(|_, level| level.now(now) > 1.0);
        }
        for party in parties {
            let failures = self.levels.get(party).map_or(0.0, |level| level.now(now)) + 1.0;
            self.levels.insert(party.clone(), Level { failures, at: now });
        }
    }

    /// Whoever knows the password is not the one who guesses it.
    fn succeeded(&mut self, address: &Party) {
        self.levels.remove(address);
    }
}

/// The throttle as threads use it together.
pub(crate) struct SignIns {
    throttle: Mutex<Throttle>,
    waiting: Arc<Mutex<HashMap<IpAddr, usize>>>,
    start: Instant,
}

impl Default for SignIns {
    fn default() -> Self {
        Self { throttle: Mutex::default(), waiting: Arc::default(), start: Instant::now() }
    }
}

impl SignIns {
    /// Waits for as long as these have to; `None` if too many of that address wait already.
    pub(crate) async fn turn(&self, address: IpAddr, account: &str) -> Option<Try<'_>> {
        let waiting = Waiting::enter(&self.waiting, address)?;
        let parties = [Party::Address(network(address)), Party::Account(account.to_owned())];
        let delay = lock(&self.throttle).delay(&parties, self.start.elapsed());
        tokio::time::sleep(delay).await;
        Some(Try { sign_ins: self, parties, _waiting: waiting })
    }
}

/// One try to sign in.
pub(crate) struct Try<'a> {
    sign_ins: &'a SignIns,
    parties: [Party; 2],
    _waiting: Waiting,
}

impl Try<'_> {
    pub(crate) fn failed(self) {
        lock(&self.sign_ins.throttle).failed(&self.parties, self.sign_ins.start.elapsed());
    }

    pub(crate) fn succeeded(self) {
        lock(&self.sign_ins.throttle).succeeded(&self.parties[0]);
    }
}

/// A place among those of an address that wait.
struct Waiting {
    all: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Waiting {
    fn enter(all: &Arc<Mutex<HashMap<IpAddr, usize>>>, address: IpAddr) -> Option<Self> {
        let mut counts = lock(all);
        let count = counts.entry(address).or_default();
        if *count >= WAITING {
            return None;
        }
        *count += 1;
        Some(Self { all: all.clone(), address })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut counts = lock(&self.all);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Whoever has one IPv6 address has many of the same network.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn party(name: u8) -> Party {
        Party::Account(name.to_string())
    }

    #[test]
    fn failures_slow_down_and_fade() {
        let mut throttle = Throttle::default();
        let parties = [party(1), party(2)];
        for _ in 0..4 {
            assert_eq!(throttle.delay(&parties, Duration::ZERO), Duration::ZERO);
            throttle.failed(&parties, Duration::ZERO);
        }
        throttle.failed(&parties, Duration::ZERO);
        throttle.failed(&parties, Duration::ZERO);
        assert_eq!(throttle.delay(&parties, Duration::ZERO), EACH * 2);
        assert_eq!(throttle.delay(&[party(3)], Duration::ZERO), Duration::ZERO, "others are not held up");
        assert_eq!(throttle.delay(&parties, HALF_LIFE), Duration::ZERO);
        throttle.succeeded(&party(1));
        assert!(throttle.delay(&[party(1)], Duration::ZERO).is_zero());
    }

    proptest! {
        #[test]
        fn nobody_ever_waits_for_longer_than_the_longest(tries in proptest::collection::vec((0..3u8, 0..100u64), 0..500)) {
            let mut throttle = Throttle::default();
            let mut now = Duration::ZERO;
            for (name, pause) in tries {
                now += Duration::from_millis(pause);
                prop_assert!(throttle.delay(&[party(name)], now) <= LONGEST);
                throttle.failed(&[party(name)], now);
            }
        }
    }
}
