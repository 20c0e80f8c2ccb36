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
        let is_clock_set_back = self.minute > minute + 1;
        if minute > self.minute || is_clock_set_back {
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
        // As if all were of the oldest minute: what is given back may be too little, never too much.
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
        // One that ends much later was made before the clock was set back.
        self.holds.retain(|_, hold| hold.until > now && hold.until <= now + 2 * HOLD_TIME);
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

/// A request's start: the minute in which it counts, if the rate is limited.
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
mod tests;
