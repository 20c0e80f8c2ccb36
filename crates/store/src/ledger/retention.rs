//! The time by which old rows are deleted. One clock alone never causes a deletion.
//!
//! A deletion cannot be undone, and any clock can be set wrong: by a host, by hand, by a failover to another server. So the
//! ledger has a separate time, stored beside the rows. It follows the database's clock, but no faster than the monotonic
//! clock. Only when the database's clock has been steady for an hour does the ledger's time catch up, by one day per hour.
//! A clock that is wrong for less than an hour deletes nothing. A service that was stopped for months deletes all due rows
//! within days, and one that was restarted within an hour uses the clock immediately. No recent rows are needed for this,
//! so an idle service deletes like a busy one.
//!
//! Reads neither a clock nor a database: both values are arguments.

use std::time::Duration;

use chat::Timestamp;

/// A clock that is off by at most this from one reading to the next was not set.
const STEP: Duration = Duration::from_secs(60);
/// How long a clock must run without a step before the ledger's time catches up.
const STEADY: Duration = Duration::from_secs(3_600);
/// The speed of catching up: a day per hour.
const CATCH_UP: u32 = 24;
/// A clock at most this far ahead of the stored time is accepted at the start: the service was restarted.
const RESTART: Duration = Duration::from_secs(3_600);
/// A larger difference is logged as a warning.
const MAX_DISAGREEMENT: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone)]
pub(crate) struct RetentionClock {
    /// The ledger's time.
    time: Timestamp,
    /// The database's clock, as last read.
    clock: Timestamp,
    /// How long the clock has run without a step.
    steady: Duration,
}

impl RetentionClock {
    /// Continues from an earlier process's state. A database without a stored time is new or from an earlier version: its
    /// newest row is used instead.
    pub(crate) fn resume(stored: Option<Timestamp>, newest_row: Option<Timestamp>, clock: Timestamp) -> Self {
        let known = stored.or(newest_row.map(|row| row.min(clock))).unwrap_or(clock);
        let time = if clock.duration_since(known) <= RESTART { known.max(clock) } else { known };
        Self { time, clock, steady: Duration::ZERO }
    }

    /// Applies another reading of the database's clock. `elapsed` is monotonic time since the previous one. `moved` is the
    /// stored time if another process has moved it meanwhile, by the same rule.
    pub(crate) fn advance(&mut self, clock: Timestamp, elapsed: Duration, moved: Option<Timestamp>) {
        let expected = self.clock + elapsed;
        let stepped = clock.duration_since(expected).max(expected.duration_since(clock)) > STEP;
        self.steady = if stepped { Duration::ZERO } else { self.steady.saturating_add(elapsed) };
        self.clock = clock;
        if let Some(moved) = moved {
            self.time = moved;
            return;
        }
        let most = if self.steady >= STEADY { elapsed.saturating_mul(CATCH_UP) } else { elapsed };
        if clock >= self.time {
            self.time = clock.min(self.time + most);
        } else if self.steady >= STEADY {
            self.time = clock.max(self.time.saturating_sub(most));
        }
    }

    /// The ledger's time, to be stored.
    pub(crate) fn time(&self) -> Timestamp {
        self.time
    }

    /// The time by which rows may be deleted: the earlier of the database's clock and the ledger's time.
    pub(crate) fn agreed(&self) -> Timestamp {
        self.time.min(self.clock)
    }

    /// The earliest time for new rows and changes, if the clock has just been set back and may be set forward again.
    /// `None` once it has stayed behind for so long that the ledger's time must have been wrong.
    pub(crate) fn floor(&self) -> Option<Timestamp> {
        (self.clock >= self.time || self.steady < STEADY).then_some(self.time)
    }

    /// How far the database's clock is ahead of the ledger's time, in seconds; negative if it is behind.
    pub(crate) fn disagreement_seconds(&self) -> i64 {
        let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        seconds(self.clock.duration_since(self.time)) - seconds(self.time.duration_since(self.clock))
    }

    /// Whether the two differ so much that the operator should check the clock.
    pub(crate) fn is_disputed(&self) -> bool {
        self.disagreement_seconds().unsigned_abs() > MAX_DISAGREEMENT.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(86_400);
    const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn running() -> RetentionClock {
        let mut clock = RetentionClock::resume(None, None, START);
        clock.advance(START + 2 * HOUR, 2 * HOUR, None);
        clock
    }

    /// A clock that is `days` off the true time; positive is ahead.
    fn shifted(now: Timestamp, days: i64) -> Timestamp {
        let shift = days.unsigned_abs() as u32 * DAY;
        if days < 0 { now.saturating_sub(shift) } else { now + shift }
    }

    #[test]
    fn a_clock_ahead_for_a_minute_has_no_effect() {
        let mut clock = running();
        let now = START + 2 * HOUR;
        clock.advance(now + MINUTE + 200 * DAY, MINUTE, None);
        assert_eq!(clock.agreed(), now + MINUTE);
        assert!(clock.is_disputed());
        assert_eq!(clock.disagreement_seconds(), 200 * 86_400);
        clock.advance(now + 2 * MINUTE, MINUTE, None);
        assert_eq!(clock.agreed(), now + 2 * MINUTE);
        assert!(!clock.is_disputed());
    }

    #[test]
    fn a_clock_that_is_set_back_counts_only_after_an_hour() {
        let (mut clock, mut now) = (running(), START + 2 * HOUR);
        let before = now;
        for minute in 0..120 {
            now = now + MINUTE;
            clock.advance(now.saturating_sub(200 * DAY), MINUTE, None);
            assert_eq!(clock.floor(), (minute < 60).then_some(before), "minute {minute}");
        }
        assert_eq!(clock.agreed(), now.saturating_sub(200 * DAY));
    }

    #[test]
    fn a_process_that_starts_with_a_wrong_clock_uses_the_stored_time() {
        let mut clock = RetentionClock::resume(Some(START), Some(START + 200 * DAY), START + 200 * DAY);
        assert_eq!(clock.agreed(), START);
        clock.advance(START + 200 * DAY + MINUTE, MINUTE, None);
        assert_eq!(clock.agreed(), START + MINUTE);
    }

    #[test]
    fn after_a_restart_within_an_hour_the_clock_is_used() {
        assert_eq!(RetentionClock::resume(Some(START), None, START + HOUR).agreed(), START + HOUR);
        assert_eq!(RetentionClock::resume(Some(START), None, START + HOUR + MINUTE).agreed(), START);
        assert_eq!(RetentionClock::resume(Some(START + HOUR), None, START).time(), START + HOUR);
    }

    #[test]
    fn without_a_stored_time_the_newest_row_counts_unless_it_is_in_the_future() {
        let newest = |row| RetentionClock::resume(None, row, START).agreed();
        assert_eq!(newest(None), START);
        assert_eq!(newest(Some(START.saturating_sub(100 * DAY))), START.saturating_sub(100 * DAY));
        assert_eq!(newest(Some(START + DAY)), START);
    }

    #[test]
    fn after_a_stop_of_a_hundred_days_all_due_rows_are_deleted_within_days() {
        let mut clock = RetentionClock::resume(Some(START), None, START + 100 * DAY);
        let mut now = START + 100 * DAY;
        let mut minutes = 0;
        while clock.agreed() < now {
            now = now + MINUTE;
            clock.advance(now, MINUTE, None);
            minutes += 1;
            assert!(minutes < 5 * 24 * 60, "{clock:?}");
        }
        assert!(minutes > 4 * 24 * 60, "{minutes}");
    }

    /// Periods in which a clock is wrong: days off, and the duration in minutes.
    fn spells(longest_minutes: u64) -> impl Strategy<Value = Vec<(i64, u64)>> {
        proptest::collection::vec((-400_i64..400, 1..=longest_minutes), 1..40)
    }

    proptest! {
        /// No period of less than an hour with a wrong clock deletes anything early, however wrong and frequent.
        #[test]
        fn short_periods_of_a_wrong_clock_never_delete_early(spells in spells(59), right in 0_u64..300) {
            let (mut clock, mut now) = (running(), START + 2 * HOUR);
            for (days, minutes) in spells.into_iter().flat_map(|spell| [spell, (0, right)]) {
                for _ in 0..minutes {
                    now = now + MINUTE;
                    clock.advance(shifted(now, days), MINUTE, None);
                    prop_assert!(clock.agreed() <= now, "{} days off: {clock:?} at {now:?}", days);
                }
            }
        }

        /// Once the clock is right, the ledger's time reaches it in about the time that it was wrong for, plus an hour. (A
        /// clock that is behind moves it away by 25 days per hour, and a right one back by 23.)
        #[test]
        fn a_clock_that_stays_right_is_reached(spells in spells(3000)) {
            let (mut clock, mut now, mut wrong) = (running(), START + 2 * HOUR, 0);
            for (days, minutes) in spells {
                for _ in 0..minutes {
                    now = now + MINUTE;
                    clock.advance(shifted(now, days), MINUTE, None);
                }
                wrong += minutes;
            }
            for _ in 0..wrong * 25 / 23 + 62 {
                now = now + MINUTE;
                clock.advance(now, MINUTE, None);
            }
            prop_assert_eq!(clock.time(), now);
        }

        /// For any time between two readings.
        #[test]
        fn it_never_moves_faster_than_a_day_per_hour_nor_beyond_the_clock(
            readings in proptest::collection::vec((-400_i64..400, 0_u64..200_000), 1..100),
        ) {
            let (mut clock, mut now) = (running(), START + 2 * HOUR);
            for (days, seconds) in readings {
                let (before, elapsed) = (clock.time(), Duration::from_secs(seconds));
                now = now + elapsed;
                clock.advance(shifted(now, days), elapsed, None);
                let moved = clock.time().duration_since(before).max(before.duration_since(clock.time()));
                prop_assert!(moved <= elapsed * CATCH_UP);
                prop_assert!(clock.agreed() <= shifted(now, days) && clock.agreed() <= clock.time());
            }
        }

        /// Processes share a stored time, and move it only from the value that they have read.
        #[test]
        fn many_processes_are_no_faster_than_one(
            offset in 1_i64..400, turns in proptest::collection::vec((0_usize..4, 1_u64..300), 1..200),
        ) {
            let mut now = START;
            let mut stored = START;
            let clock = RetentionClock::resume(Some(stored), None, shifted(now, offset));
            let mut processes = vec![(clock, now, stored); 4];
            for (index, seconds) in turns {
                now = now + Duration::from_secs(seconds);
                let (process, read_at, seen) = &mut processes[index];
                let moved = (*seen != stored).then_some(stored);
                process.advance(shifted(now, offset), now.duration_since(*read_at), moved);
                if moved.is_none() {
                    stored = process.time();
                }
                (*seen, *read_at) = (stored, now);
                let most = now.duration_since(START) * CATCH_UP;
                prop_assert!(stored.duration_since(START) <= most);
                prop_assert!(process.time().duration_since(START) <= most);
            }
        }
    }
}
