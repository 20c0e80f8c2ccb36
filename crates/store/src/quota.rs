//! Requests per minute and in flight of one scope, for any number of replicas. Pure.
//!
//! `SharedQuota` is the truth that replicas share. A replica takes leave to start some requests and to have some in
//! flight, which is its `LocalQuota`, so that not every request has to ask. What a replica holds that does not renew it in
//! time falls back to the others.

use std::collections::HashMap;
use std::time::Duration;

use chat::Timestamp;

use crate::limits::LimitKind;
use crate::scope::Scope;

/// How long a replica may have requests in flight without a word from it.
pub(crate) const HOLD_TIME: Duration = Duration::from_secs(10);
/// How long leave to start requests may be used.
const START_TIME: Duration = Duration::from_secs(1);
/// Part of a limit that a replica takes at once.
const LEASE_PART: u64 = 32;
const MINUTE_MILLIS: u64 = 60_000;

/// The limits that are not budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaLimits {
    pub(crate) per_minute: Option<u64>,
    pub(crate) in_flight: Option<u64>,
}

/// A limit of requests per minute or in flight that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitReached {
    pub scope: Scope,
    pub kind: LimitKind,
    pub amount: u64,
    pub used: u64,
    pub retry_after: Duration,
}

/// Requests that were started in this minute and in the one before. Of the one before counts the part that is less than a
/// minute ago, as if they had come evenly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RateWindow {
    /// Since 1970.
    pub(crate) minute: u64,
    pub(crate) started: u64,
    pub(crate) started_before: u64,
}

impl RateWindow {
    fn advance(&mut self, now: Timestamp) {
        let minute = now.as_millis() / MINUTE_MILLIS;
        if minute > self.minute {
            let started_before = if minute == self.minute + 1 { self.started } else { 0 };
            *self = Self { minute, started: 0, started_before };
        }
    }

    fn used(&self, now: Timestamp) -> u64 {
        let left = MINUTE_MILLIS.saturating_sub(now.as_millis().saturating_sub(self.minute * MINUTE_MILLIS));
        self.started + (self.started_before * left).div_ceil(MINUTE_MILLIS)
    }

    fn take(&mut self, now: Timestamp, limit: u64, wanted: u64) -> u64 {
        self.advance(now);
        let granted = wanted.min(limit.saturating_sub(self.used(now)));
        self.started += granted;
        granted
    }

    /// How long until one more may start, if no other does.
    fn retry_after(&self, now: Timestamp, limit: u64) -> Duration {
        let Some(room) = limit.checked_sub(1) else { return Duration::from_millis(MINUTE_MILLIS) };
        // The part of a minute that has to be over until so many of the ones in it may still count.
        let wait = |started: u64, may_count: u64| match started {
            0 => 0,
            started => MINUTE_MILLIS - (may_count * MINUTE_MILLIS / started).min(MINUTE_MILLIS),
        };
        let into_minute = now.as_millis().saturating_sub(self.minute * MINUTE_MILLIS).min(MINUTE_MILLIS);
        let after = match room.checked_sub(self.started) {
            Some(room) => wait(self.started_before, room),
            None => MINUTE_MILLIS + wait(self.started, room),
        };
        Duration::from_millis(after.saturating_sub(into_minute))
    }
}

/// What a replica has in flight, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) count: u64,
    pub(crate) until: Timestamp,
}

/// A number that no other replica has.
pub(crate) type Replica = i64;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SharedQuota {
    pub(crate) window: RateWindow,
    pub(crate) holds: HashMap<Replica, Hold>,
}

/// What a replica wants to have of a scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ask {
    /// More requests to start.
    pub(crate) starts: u64,
    /// Requests in flight, all together.
    pub(crate) hold: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) starts: u64,
    pub(crate) hold: u64,
    /// Whether it is less than was asked for.
    pub(crate) is_short: bool,
    /// Of all replicas.
    started: u64,
    in_flight: u64,
    retry_after: Duration,
}

impl SharedQuota {
    pub(crate) fn grant(&mut self, now: Timestamp, limits: QuotaLimits, replica: Replica, ask: Ask) -> Grant {
        let starts = limits.per_minute.map_or(0, |limit| self.window.take(now, limit, ask.starts));
        self.holds.retain(|_, hold| hold.until > now);
        let others: u64 = self.holds.iter().filter(|(of, _)| **of != replica).map(|(_, hold)| hold.count).sum();
        let hold = limits.in_flight.map_or(0, |limit| ask.hold.min(limit.saturating_sub(others)));
        match hold {
            0 => self.holds.remove(&replica),
            count => self.holds.insert(replica, Hold { count, until: now + HOLD_TIME }),
        };
        let is_short =
            limits.per_minute.is_some() && starts < ask.starts || limits.in_flight.is_some() && hold < ask.hold;
        Grant {
            starts,
            hold,
            is_short,
            started: self.window.used(now),
            in_flight: others + hold,
            retry_after: limits.per_minute.map_or(Duration::ZERO, |limit| self.window.retry_after(now, limit)),
        }
    }
}

/// What this replica has of a scope.
#[derive(Debug, Default)]
pub(crate) struct LocalQuota {
    starts: u64,
    starts_until: Timestamp,
    hold: u64,
    in_flight: u64,
    last_entered: Timestamp,
}

/// What kept a request from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    Start,
    Hold,
}

impl LocalQuota {
    /// Starts a request if there is leave to.
    pub(crate) fn enter(&mut self, now: Timestamp, limits: QuotaLimits) -> Result<(), Lacks> {
        self.expire(now);
        if limits.per_minute.is_some() && self.starts == 0 {
            return Err(Lacks::Start);
        }
        if limits.in_flight.is_some() && self.in_flight >= self.hold {
            return Err(Lacks::Hold);
        }
        self.starts = self.starts.saturating_sub(1);
        self.in_flight += 1;
        self.last_entered = now;
        Ok(())
    }

    /// What to ask for so many requests that wait, and a little more for those that will.
    pub(crate) fn ask(&self, limits: QuotaLimits, waiting: u64) -> Ask {
        let at_once = |limit: Option<u64>| limit.map_or(0, |limit| waiting.max(limit / LEASE_PART));
        let starts = at_once(limits.per_minute).saturating_sub(self.starts);
        Ask { starts, hold: (self.in_flight + at_once(limits.in_flight)).max(self.hold) }
    }

    /// The same where nobody else asks: nothing but what is needed now.
    pub(crate) fn ask_alone(&mut self, now: Timestamp, limits: QuotaLimits) -> Ask {
        self.expire(now);
        let needs_start = limits.per_minute.is_some() && self.starts == 0;
        Ask { starts: needs_start.into(), hold: self.in_flight + 1 }
    }

    /// Leave to start that was not used in time is gone.
    fn expire(&mut self, now: Timestamp) {
        if now >= self.starts_until {
            self.starts = 0;
        }
    }

    pub(crate) fn receive(&mut self, now: Timestamp, grant: &Grant) {
        if grant.starts > 0 {
            self.starts += grant.starts;
            self.starts_until = now + START_TIME;
        }
        self.hold = grant.hold;
    }

    /// The request has ended.
    pub(crate) fn leave(&mut self) {
        self.in_flight -= 1;
    }

    /// The request was not started after all.
    pub(crate) fn undo(&mut self) {
        self.leave();
        self.starts += 1;
    }

    /// What to ask for without a request: less than it holds if that was not needed for a while, and the same again before
    /// it runs out. What is given back is not used any more. `None` if there is nothing to say.
    pub(crate) fn renew(&mut self, now: Timestamp, renewed_at: Timestamp, idle: Duration) -> Option<Ask> {
        let is_surplus = self.hold > self.in_flight && now.duration_since(self.last_entered) >= idle;
        let is_due = self.hold > 0 && now.duration_since(renewed_at) >= HOLD_TIME / 2;
        if is_surplus {
            self.hold = self.in_flight;
        }
        (is_surplus || is_due).then_some(Ask { starts: 0, hold: self.hold })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.hold == 0 && self.in_flight == 0
    }
}

/// Which limit kept a request from starting, after a grant that was not enough.
pub(crate) fn reached(scope: Scope, limits: QuotaLimits, grant: &Grant, lacks: Lacks) -> LimitReached {
    match (limits.per_minute, limits.in_flight) {
        (Some(amount), _) if lacks == Lacks::Start => LimitReached {
            scope,
            kind: LimitKind::RequestsPerMinute,
            amount,
            used: grant.started,
            retry_after: grant.retry_after.max(Duration::from_secs(1)),
        },
        (_, amount) => LimitReached {
            scope,
            kind: LimitKind::RequestsInFlight,
            amount: amount.unwrap_or(0),
            used: grant.in_flight,
            retry_after: Duration::from_secs(1),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REPLICAS: usize = 3;

    /// What happens at one replica.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Enter,
        Leave,
        Renew,
        /// It is gone, and comes back as another one.
        Die,
        /// So many milliseconds pass.
        Pass(u64),
    }

    fn events() -> impl Strategy<Value = Vec<(usize, Event)>> {
        let event = prop_oneof![
            8 => Just(Event::Enter),
            5 => Just(Event::Leave),
            2 => Just(Event::Renew),
            1 => Just(Event::Die),
            3 => (0..20_000_u64).prop_map(Event::Pass),
        ];
        prop::collection::vec((0..REPLICAS, event), 1..400)
    }

    #[derive(Default)]
    struct Replicas {
        now: u64,
        shared: SharedQuota,
        local: [LocalQuota; REPLICAS],
        renewed_at: [Timestamp; REPLICAS],
        deaths: i64,
        ids: [i64; REPLICAS],
        started: Vec<u64>,
    }

    impl Replicas {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.now)
        }

        fn ask(&mut self, at: usize, limits: QuotaLimits, ask: Ask) {
            let now = self.now();
            let grant = self.shared.grant(now, limits, self.ids[at], ask);
            self.local[at].receive(now, &grant);
            self.renewed_at[at] = now;
        }

        fn happen(&mut self, at: usize, event: Event, limits: QuotaLimits) {
            match event {
                Event::Enter => {
                    if self.local[at].enter(self.now(), limits).is_err() {
                        self.ask(at, limits, self.local[at].ask(limits, 1));
                        if self.local[at].enter(self.now(), limits).is_err() {
                            return;
                        }
                    }
                    self.started.push(self.now);
                }
                Event::Leave if self.local[at].in_flight > 0 => self.local[at].leave(),
                Event::Leave => {}
                Event::Renew => self.renew(at, limits),
                Event::Die => {
                    self.deaths += 1;
                    self.ids[at] = 100 + self.deaths;
                    self.local[at] = LocalQuota::default();
                }
                Event::Pass(millis) => {
                    // As often as the task looks, at least as often as holds need it.
                    for _ in 0..millis.div_ceil(4_000) {
                        self.now += millis.min(4_000);
                        (0..REPLICAS).for_each(|at| self.renew(at, limits));
                    }
                }
            }
        }

        fn renew(&mut self, at: usize, limits: QuotaLimits) {
            let (now, renewed_at) = (self.now(), self.renewed_at[at]);
            if let Some(ask) = self.local[at].renew(now, renewed_at, Duration::from_millis(50)) {
                self.ask(at, limits, ask);
            }
        }
    }

    proptest! {
        #[test]
        fn no_limit_is_exceeded_whatever_replicas_do(
            events in events(),
            per_minute in prop::option::of(0..100_u64),
            in_flight in prop::option::of(0..100_u64),
        ) {
            let limits = QuotaLimits { per_minute, in_flight };
            let mut replicas = Replicas { now: 1_700_000_000_000, ids: [1, 2, 3], ..Replicas::default() };
            for (at, event) in events {
                replicas.happen(at, event, limits);
                if let Some(limit) = in_flight {
                    let all: u64 = replicas.local.iter().map(|local| local.in_flight).sum();
                    prop_assert!(all <= limit, "{all} in flight of {limit}");
                }
                if let Some(limit) = per_minute {
                    // Any minute by the clock; leave to start may be used a second later.
                    let minute = replicas.now / MINUTE_MILLIS;
                    let started = replicas.started.iter().filter(|at| **at / MINUTE_MILLIS == minute).count() as u64;
                    prop_assert!(started <= limit + REPLICAS as u64 * (limit / LEASE_PART).max(1), "{started} of {limit}");
                }
            }
        }
    }

    #[test]
    fn leave_that_expired_is_asked_for_again() {
        let limits = QuotaLimits { per_minute: Some(60), in_flight: Some(1) };
        let (mut shared, mut local) = (SharedQuota::default(), LocalQuota::default());
        let mut enter = |local: &mut LocalQuota, millis: u64| {
            let now = Timestamp::from_millis(1_700_000_000_000 + millis);
            let grant = shared.grant(now, limits, 0, local.ask_alone(now, limits));
            local.receive(now, &grant);
            local.enter(now, limits)
        };
        assert_eq!(enter(&mut local, 0), Ok(()));
        assert_eq!(enter(&mut local, 1), Err(Lacks::Hold), "it may start, but one is in flight");
        local.leave();
        assert_eq!(enter(&mut local, 5_000), Ok(()));
    }

    #[test]
    fn who_waits_as_long_as_told_may_start() {
        for (before, now_millis) in [(0, 0), (0, 59_999), (5, 0), (5, 30_000)] {
            let minute = 28_000_000;
            let mut window = RateWindow { minute: minute - 1, started: before, started_before: 0 };
            let mut now = Timestamp::from_millis(minute * MINUTE_MILLIS + now_millis);
            while window.take(now, 5, 1) == 1 {}
            now = now + window.retry_after(now, 5) + Duration::from_millis(1);
            assert_eq!(window.take(now, 5, 1), 1, "{before} {now_millis}");
        }
        assert_eq!(RateWindow::default().retry_after(Timestamp::default(), 0), Duration::from_secs(60));
    }
}
