//! The store's clock: this machine's with SQLite, the database server's with PostgreSQL. Replicas share the server's clock,
//! so that expiry, request ids and the days of the ledger depend on no replica's clock.
//!
//! A clock that is set back by more than a day is not followed immediately: rows dated in a past year would be deleted as
//! old.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chat::Timestamp;

/// Smaller differences may come from the network, and are not corrected.
const PRECISION: Duration = Duration::from_millis(100);

/// A clock that falls further behind than this has been set back.
const MAX_STEP_BACK_MICROS: u64 = 86_400_000_000;

pub(crate) struct StoreClock {
    /// The database server's time, which is corrected from time to time; `None` if this machine's clock is used.
    server: Option<RunningTime>,
    /// The ledger's time, from `RetentionClock`.
    floor: RunningTime,
}

/// A time that advances with the monotonic clock.
struct RunningTime {
    started: Instant,
    /// Microseconds since 1970 at `started`.
    at_start: AtomicU64,
}

impl StoreClock {
    pub(crate) fn this_machine() -> Self {
        Self { server: None, floor: RunningTime::new(Instant::now()) }
    }

    /// A server's clock, which was read between `asked` and `answered`.
    pub(crate) fn server(server: u64, asked: Instant, answered: Instant) -> Self {
        let clock = Self { server: Some(RunningTime::new(asked)), floor: RunningTime::new(asked) };
        clock.correct(server, asked, answered);
        clock
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_micros())
    }

    /// Microseconds since 1970.
    pub(crate) fn now_micros(&self) -> u64 {
        let now = Instant::now();
        let (source, floor) = (self.source_micros(now), self.floor.at(now));
        if source < floor.saturating_sub(MAX_STEP_BACK_MICROS) { floor } else { source }
    }

    /// From now on, the clock is not followed if it falls far behind this time; with `None` it is always followed.
    pub(crate) fn set_floor(&self, floor: Option<Timestamp>) {
        self.floor.set(floor.map_or(0, |floor| floor.as_millis().saturating_mul(1000)), Instant::now());
    }

    /// Corrects the clock by the server's time (microseconds since 1970), which was read between `asked` and `answered`.
    pub(crate) fn correct(&self, server: u64, asked: Instant, answered: Instant) {
        let Some(clock) = &self.server else { return };
        let took = answered.saturating_duration_since(asked);
        let said_at = asked + took / 2;
        if server.abs_diff(clock.at(said_at)) > micros(took.max(PRECISION)) {
            clock.set(server, said_at);
        }
    }

    /// How far this machine's own clock is ahead, in seconds.
    pub(crate) fn machine_ahead_seconds(&self) -> f64 {
        let ahead = |clock: &RunningTime| (machine_micros() as f64 - clock.at(Instant::now()) as f64) / 1e6;
        self.server.as_ref().map_or(0.0, ahead)
    }

    fn source_micros(&self, now: Instant) -> u64 {
        self.server.as_ref().map_or_else(machine_micros, |clock| clock.at(now))
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

/// A time as text, in RFC 3339.
pub(crate) fn utc(time: Timestamp) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_millis(time.as_millis().min(MAX_MILLIS)))
}

/// The end of the year 9999, the last that the format supports.
const MAX_MILLIS: u64 = 253_402_300_799_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_server_and_ignores_network_delays() {
        const SECOND: Duration = Duration::from_secs(1);
        let start = Instant::now();
        let clock = StoreClock::server(1_000_000_000, start, start);
        assert_eq!(clock.source_micros(start + SECOND), 1_001_000_000);
        // The answer took two seconds: the server may have read its clock at any time within them.
        clock.correct(1_001_900_000, start, start + 2 * SECOND);
        assert_eq!(clock.source_micros(start + SECOND), 1_001_000_000);
        clock.correct(9_001_000_000, start, start + 2 * SECOND);
        assert_eq!(clock.source_micros(start + SECOND), 9_001_000_000);
        clock.correct(100_000_000, start + 9 * SECOND, start + 9 * SECOND);
        assert_eq!(clock.source_micros(start + 10 * SECOND), 101_000_000, "also backwards");
    }

    #[test]
    fn a_clock_far_behind_the_floor_is_not_followed() {
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
