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

    fn give_back(&mut self, now: Timestamp, unused: UnusedStarts) {
        self.advance(now);
        match self.minute.checked_sub(unused.minute) {
            Some(0) => self.started = self.started.saturating_sub(unused.count),
            Some(1) => self.started_before = self.started_before.saturating_sub(unused.count),
            _ => {} // they do not count any more
        }
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

/// Leave to start requests that was taken in a minute, or before it, and lapsed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnusedStarts {
    minute: u64,
    count: u64,
}

impl UnusedStarts {
    fn add(&mut self, minute: u64, count: u64) {
        // The older a start, the less it counts: nothing is given back twice.
        self.minute = if self.count == 0 { minute } else { self.minute.min(minute) };
        self.count += count;
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
    /// What it had and did not use.
    pub(crate) unused: UnusedStarts,
    /// Requests in flight, all together.
    pub(crate) hold: u64,
    /// Those that are in flight already.
    pub(crate) in_flight: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) starts: u64,
    /// The minute in which they count.
    minute: u64,
    pub(crate) hold: u64,
    /// Whether the rate allows fewer starts than were asked for.
    pub(crate) lacks_starts: bool,
    pub(crate) lacks_hold: bool,
    /// Of all replicas.
    started: u64,
    in_flight: u64,
    retry_after: Duration,
}

impl SharedQuota {
    pub(crate) fn grant(&mut self, now: Timestamp, limits: QuotaLimits, replica: Replica, ask: Ask) -> Grant {
        self.holds.retain(|_, hold| hold.until > now);
        let others: u64 = self.holds.iter().filter(|(of, _)| **of != replica).map(|(_, hold)| hold.count).sum();
        let hold = limits.in_flight.map_or(0, |limit| ask.hold.min(limit.saturating_sub(others)));
        match hold {
            0 => self.holds.remove(&replica),
            count => self.holds.insert(replica, Hold { count, until: now + HOLD_TIME }),
        };
        // Who has no place for a request cannot start one.
        let can_start = limits.in_flight.is_none() || hold > ask.in_flight;
        let wanted = if can_start { ask.starts } else { 0 };
        let starts = limits.per_minute.map_or(0, |limit| {
            self.window.give_back(now, ask.unused);
            self.window.take(now, limit, wanted)
        });
        Grant {
            starts,
            minute: self.window.minute,
            hold,
            lacks_starts: limits.per_minute.is_some() && starts < wanted,
            lacks_hold: limits.in_flight.is_some() && hold < ask.hold,
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
    /// The minute in which the oldest of them was taken.
    starts_of: u64,
    unused: UnusedStarts,
    hold: u64,
    in_flight: u64,
    last_entered: Timestamp,
}

/// The start of a request: of which minute it was taken, where their number is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start(Option<u64>);

/// What kept a request from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    Start,
    Hold,
}

impl LocalQuota {
    /// Starts a request if there is leave to.
    pub(crate) fn enter(&mut self, now: Timestamp, limits: QuotaLimits) -> Result<Start, Lacks> {
        self.expire(now);
        if limits.in_flight.is_some() && self.in_flight >= self.hold {
            return Err(Lacks::Hold);
        }
        if limits.per_minute.is_some() && self.starts == 0 {
            return Err(Lacks::Start);
        }
        let start = limits.per_minute.map(|_| self.starts_of);
        self.starts -= u64::from(start.is_some());
        self.in_flight += 1;
        self.last_entered = now;
        Ok(Start(start))
    }

    /// What to ask for so many requests that wait, and a little more for those that will.
    pub(crate) fn ask(&mut self, now: Timestamp, limits: QuotaLimits, waiting: u64) -> Ask {
        self.expire(now);
        let at_once = |limit: Option<u64>| limit.map_or(0, |limit| waiting.max(limit / LEASE_PART));
        let starts = at_once(limits.per_minute).saturating_sub(self.starts);
        let hold = (self.in_flight + at_once(limits.in_flight)).max(self.hold);
        Ask { starts, hold, unused: std::mem::take(&mut self.unused), in_flight: self.in_flight }
    }

    /// The same where nobody else asks: nothing but what is needed now.
    pub(crate) fn ask_alone(&mut self, now: Timestamp, limits: QuotaLimits) -> Ask {
        self.expire(now);
        let needs_start = limits.per_minute.is_some() && self.starts == 0;
        let (unused, in_flight) = (std::mem::take(&mut self.unused), self.in_flight);
        Ask { starts: needs_start.into(), hold: in_flight + 1, unused, in_flight }
    }

    /// Leave to start that was not used in time is given back with the next question.
    fn expire(&mut self, now: Timestamp) {
        if now >= self.starts_until && self.starts > 0 {
            self.unused.add(self.starts_of, std::mem::take(&mut self.starts));
        }
    }

    fn add_starts(&mut self, minute: u64, count: u64) {
        self.starts_of = if self.starts == 0 { minute } else { self.starts_of.min(minute) };
        self.starts += count;
    }

    pub(crate) fn receive(&mut self, now: Timestamp, grant: &Grant) {
        if grant.starts > 0 {
            self.add_starts(grant.minute, grant.starts);
            self.starts_until = now + START_TIME;
        }
        self.hold = grant.hold;
    }

    /// The request has ended.
    pub(crate) fn leave(&mut self) {
        self.in_flight -= 1;
    }

    /// The request was not started after all.
    pub(crate) fn undo(&mut self, start: Start) {
        self.leave();
        if let Start(Some(minute)) = start {
            self.add_starts(minute, 1);
        }
    }

    /// What to ask for without a request: less than it holds if that was not needed for a while, and the same again before
    /// it runs out. What is given back is not used any more. `None` if there is nothing to say.
    pub(crate) fn renew(&mut self, now: Timestamp, renewed_at: Timestamp, idle: Duration) -> Option<Ask> {
        let is_surplus = self.hold > self.in_flight && now.duration_since(self.last_entered) >= idle;
        let is_due = self.hold > 0 && now.duration_since(renewed_at) >= HOLD_TIME / 2;
        if is_surplus {
            self.hold = self.in_flight;
        }
        (is_surplus || is_due).then_some(Ask { hold: self.hold, in_flight: self.in_flight, ..Ask::default() })
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
        /// What entered last is not started after all.
        Undo,
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
            3 => Just(Event::Undo),
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
        /// In flight, with the time.
        entered: [Vec<(Start, u64)>; REPLICAS],
        /// Those that have ended.
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
                    let entered = self.local[at].enter(self.now(), limits).or_else(|_| {
                        let ask = self.local[at].ask(self.now(), limits, 1);
                        self.ask(at, limits, ask);
                        self.local[at].enter(self.now(), limits)
                    });
                    self.entered[at].extend(entered.map(|start| (start, self.now)));
                }
                Event::Leave => {
                    if let Some((_, time)) = self.entered[at].pop() {
                        self.local[at].leave();
                        self.started.push(time);
                    }
                }
                Event::Undo => {
                    if let Some((start, _)) = self.entered[at].pop() {
                        self.local[at].undo(start);
                    }
                }
                Event::Renew => self.renew(at, limits),
                Event::Die => {
                    self.deaths += 1;
                    self.ids[at] = 100 + self.deaths;
                    self.local[at] = LocalQuota::default();
                    self.started.extend(self.entered[at].drain(..).map(|(_, time)| time));
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
                    let entered = replicas.entered.iter().flatten().map(|(_, time)| time);
                    let times = entered.chain(&replicas.started);
                    let started = times.filter(|time| **time / MINUTE_MILLIS == minute).count() as u64;
                    prop_assert!(started <= limit + REPLICAS as u64 * (limit / LEASE_PART).max(1), "{started} of {limit}");
                }
            }
        }
    }

    /// A process that is alone, in a minute that has just begun.
    struct Alone {
        limits: QuotaLimits,
        shared: SharedQuota,
        local: LocalQuota,
    }

    impl Alone {
        fn new(per_minute: u64, in_flight: Option<u64>) -> Self {
            let limits = QuotaLimits { per_minute: Some(per_minute), in_flight };
            Self { limits, shared: SharedQuota::default(), local: LocalQuota::default() }
        }

        fn enter(&mut self, millis: u64) -> Result<Start, Lacks> {
            let now = Timestamp::from_millis(28_333_334 * MINUTE_MILLIS + millis);
            let grant = self.shared.grant(now, self.limits, 0, self.local.ask_alone(now, self.limits));
            self.local.receive(now, &grant);
            self.local.enter(now, self.limits)
        }
    }

    #[test]
    fn a_request_without_a_place_uses_no_start_up() {
        let mut alone = Alone::new(3, Some(1));
        alone.enter(0).unwrap();
        for second in 1..50 {
            assert_eq!(alone.enter(second * 1_000), Err(Lacks::Hold));
        }
        for millis in [50_000, 50_001] {
            alone.local.leave();
            alone.enter(millis).unwrap();
        }
        alone.local.leave();
        assert_eq!(alone.enter(50_002), Err(Lacks::Start));
    }

    #[test]
    fn a_request_that_another_limit_refused_uses_no_start_up() {
        let mut alone = Alone::new(3, None);
        for millis in [0, 1, 1_500, 3_000, 30_000] {
            let start = alone.enter(millis).unwrap();
            alone.local.undo(start);
        }
        for millis in [40_000, 50_000, 59_000] {
            alone.enter(millis).unwrap();
        }
        assert_eq!(alone.enter(59_999), Err(Lacks::Start));
        // Taken in that minute, given back in the next: it is the one before that it counted in.
        let mut late = Alone::new(3, None);
        let start = late.enter(59_999).unwrap();
        late.local.undo(start);
        (0..3).for_each(|_| drop(late.enter(61_000).unwrap()));
        assert_eq!(late.enter(61_001), Err(Lacks::Start));
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
