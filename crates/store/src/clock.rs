//! The time that a store goes by: this machine's with SQLite, the database server's with PostgreSQL. There all replicas
//! share one clock, whatever their own say: expiry, request ids and the days of the ledger depend on no replica.
//!
//! Either is not believed at once if it is set back by more than a day: a row of a past year would be deleted as old.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chat::Timestamp;

/// A difference that a slow network explains is not corrected.
const PRECISION: Duration = Duration::from_millis(100);

/// A clock that is further behind than this has been set back.
const MAX_STEP_BACK_MICROS: u64 = 86_400_000_000;

pub(crate) struct StoreClock {
    source: Source,
    /// The ledger's own time, by `RetentionClock`.
    floor: RunningTime,
}

enum Source {
    ThisMachine,
    Server(ServerClock),
}

/// Runs on with a clock that nobody can set, and is corrected now and then by the server's.
pub(crate) struct ServerClock(RunningTime);

/// A time that runs on by itself from when it was set.
struct RunningTime {
    started: Instant,
    /// Microseconds since 1970 at `started`.
    at_start: AtomicU64,
}

impl StoreClock {
    pub(crate) fn this_machine() -> Self {
        Self { source: Source::ThisMachine, floor: RunningTime::new(Instant::now()) }
    }

    pub(crate) fn server(clock: ServerClock) -> Self {
        Self { source: Source::Server(clock), floor: RunningTime::new(Instant::now()) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_micros())
    }

    /// Microseconds since 1970.
    pub(crate) fn now_micros(&self) -> u64 {
        let now = Instant::now();
        let (said, floor) = (self.source_micros(now), self.floor.at(now));
        if said < floor.saturating_sub(MAX_STEP_BACK_MICROS) { floor } else { said }
    }

    /// From now on, the clock is not believed if it falls far behind this time; `None` if it is believed whatever it
    /// says.
    pub(crate) fn set_floor(&self, floor: Option<Timestamp>) {
        self.floor.set(floor.map_or(0, |floor| floor.as_millis().saturating_mul(1000)), Instant::now());
    }

    /// Follows what the server said between two moments, in microseconds since 1970.
    pub(crate) fn correct(&self, server: u64, asked: Instant, answered: Instant) {
        if let Source::Server(clock) = &self.source {
            clock.correct(server, asked, answered);
        }
    }

    /// How far this machine's own clock is ahead, in seconds.
    pub(crate) fn machine_ahead_seconds(&self) -> f64 {
        match &self.source {
            Source::ThisMachine => 0.0,
            Source::Server(clock) => (machine_micros() as f64 - clock.0.at(Instant::now()) as f64) / 1e6,
        }
    }

    fn source_micros(&self, now: Instant) -> u64 {
        match &self.source {
            Source::ThisMachine => machine_micros(),
            Source::Server(clock) => clock.0.at(now),
        }
    }
}

impl ServerClock {
    pub(crate) fn new(server: u64, asked: Instant, answered: Instant) -> Self {
        let clock = Self(RunningTime::new(asked));
        clock.correct(server, asked, answered);
        clock
    }

    fn correct(&self, server: u64, asked: Instant, answered: Instant) {
        let took = answered.saturating_duration_since(asked);
        let said_at = asked + took / 2;
        if server.abs_diff(self.0.at(said_at)) > micros(took.max(PRECISION)) {
            self.0.set(server, said_at);
        }
    }
}

impl RunningTime {
    /// Starts in 1970.
    fn new(started: Instant) -> Self {
        Self { started, at_start: AtomicU64::new(0) }
    }

    fn at(&self, moment: Instant) -> u64 {
        self.at_start.load(Relaxed) + self.micros_until(moment)
    }

    fn set(&self, time: u64, moment: Instant) {
        self.at_start.store(time.saturating_sub(self.micros_until(moment)), Relaxed);
    }

    fn micros_until(&self, moment: Instant) -> u64 {
        micros(moment.saturating_duration_since(self.started))
    }
}

fn machine_micros() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_server_but_not_the_delays_of_the_network() {
        const SECOND: Duration = Duration::from_secs(1);
        let start = Instant::now();
        let clock = ServerClock::new(1_000_000_000, start, start);
        assert_eq!(clock.0.at(start + SECOND), 1_001_000_000);
        // Two seconds for an answer: anything within them may be right.
        clock.correct(1_001_900_000, start, start + 2 * SECOND);
        assert_eq!(clock.0.at(start + SECOND), 1_001_000_000);
        clock.correct(9_001_000_000, start, start + 2 * SECOND);
        assert_eq!(clock.0.at(start + SECOND), 9_001_000_000);
        clock.correct(100_000_000, start + 9 * SECOND, start + 9 * SECOND);
        assert_eq!(clock.0.at(start + 10 * SECOND), 101_000_000, "also backwards");
    }

    #[test]
    fn a_clock_that_falls_far_behind_is_not_believed_until_it_may_be() {
        let (clock, now) = (StoreClock::this_machine(), Timestamp::from_micros(machine_micros()));
        let (hour, year) = (Duration::from_secs(3_600), Duration::from_secs(365 * 86_400));
        clock.set_floor(Some(now + hour));
        assert!(clock.now() < now + hour, "this is within a day");
        clock.set_floor(Some(now + year));
        assert!(clock.now() >= now + year);
        clock.set_floor(None);
        assert!(clock.now() < now + hour);
    }
}
