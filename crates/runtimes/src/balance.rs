//! Which member takes the next request, pure: time comes in as milliseconds.
//!
//! A prompt's beginning has an order of members (`affinity`). The first of them takes the request up to its share, a quarter above
//! the mean; what spills goes to the next in that order that is below the mean, so that it finds caches there, too. (By the
//! simulation, spilling to the least loaded finds three hundredths less in caches; filling the next ones up to a quarter above the
//! mean as well costs as much in latency.) Shares are smaller for those that are slow or silent (`pace`). Members that are
//! full, silent for too long or broken are asked only if nobody else is left, in that order.

use breaker::{Attempt, Breaker, State, Verdict};

pub use crate::affinity::Affinity;
use crate::affinity::stable_hash;
use crate::pace::{Pace, Yardstick};

/// How much more than the mean a member may carry: a quarter.
const SHARE: f64 = 1.25;
/// How often the members are compared with each other.
const COMPARE_EVERY: u64 = 100;

/// The load and state of every member, each in a place of its own that stays the same for as long as it is there.
#[derive(Debug, Default)]
pub struct Balance {
    members: Vec<Load>,
    yardstick: Option<Yardstick>,
    compared_at: Option<u64>,
    /// Room for sorting and for those that are ready, so that nothing is allocated for a request.
    sorting: Vec<(f64, f64)>,
    ready: Vec<usize>,
}

/// The load and state of one member.
#[derive(Debug, Clone)]
pub struct Load {
    identity: u64,
    place: Place,
    in_flight: usize,
    breaker: Breaker,
    pace: Pace,
    /// Since when nothing came back although something is under way.
    waiting_since: u64,
    full_until: u64,
    deserved: f64,
}

/// Whether a member belongs to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Taken,
    /// It finishes what it has and gets nothing new.
    Draining,
    Vacant,
}

/// A request under way at a member.
#[derive(Debug)]
#[must_use = "a request that is not released counts for ever"]
pub struct Lease {
    member: usize,
    attempt: Attempt,
    began: u64,
}

impl Lease {
    /// The member's place.
    pub fn member(&self) -> usize {
        self.member
    }
}

/// How a request ended, as far as its member is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    verdict: Verdict,
    /// Something came back, whatever it was.
    heard: bool,
    tokens: Option<u32>,
    full_for: u64,
}

impl Ending {
    /// With a completion of that many tokens.
    pub fn completed(tokens: u32) -> Self {
        Self { verdict: Verdict::Good, heard: true, tokens: Some(tokens), full_for: 0 }
    }

    /// With something else that came back.
    pub fn heard(verdict: Verdict) -> Self {
        Self { verdict, heard: true, tokens: None, full_for: 0 }
    }

    /// Without anything that came back.
    pub fn silent(verdict: Verdict) -> Self {
        Self { verdict, heard: false, tokens: None, full_for: 0 }
    }

    /// What it says about the member's health.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// With the word that there is no room for that many milliseconds.
    pub fn full(verdict: Verdict, full_for: u64) -> Self {
        Self { full_for, ..Self::heard(verdict) }
    }
}

/// Whom one would rather ask; the first are asked before the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Ready,
    Full,
    Hung,
    Broken,
}

impl Load {
    fn new(name: &str, breaker: Breaker) -> Self {
        Self {
            // A byte that occurs in no name ends it.
            identity: stable_hash(&[name.as_bytes(), &[0xff]]),
            place: Place::Taken,
            in_flight: 0,
            breaker,
            pace: Pace::default(),
            waiting_since: 0,
            full_until: 0,
            deserved: 1.0,
        }
    }

    /// Requests under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether it counts as working.
    pub fn is_healthy(&self) -> bool {
        self.breaker.is_closed()
    }

    /// Whether a request would be sent to it: it works, or one may try whether it does again.
    pub fn is_available(&self, now: u64) -> bool {
        self.place == Place::Taken && self.breaker.allows(now)
    }

    /// How its breaker is.
    pub fn breaker(&self, now: u64) -> State {
        self.breaker.state(now)
    }

    /// Whether it only finishes what it has.
    pub fn is_draining(&self) -> bool {
        self.place == Place::Draining
    }

    /// Whether nobody is there.
    pub fn is_vacant(&self) -> bool {
        self.place == Place::Vacant
    }

    /// The part of a full share that it gets: 1 unless it is slow or silent.
    pub fn deserved(&self) -> f64 {
        self.deserved
    }

    /// Until when it has said to be full; in the past if it has not.
    pub fn full_until(&self) -> u64 {
        self.full_until
    }

    /// Milliseconds that a request took of late.
    pub fn per_request(&self) -> Option<f64> {
        self.pace.per_request()
    }

    /// Milliseconds that a token took of late.
    pub fn per_token(&self) -> Option<f64> {
        self.pace.per_token()
    }

    fn standing(&self, now: u64) -> Option<Standing> {
        if self.place != Place::Taken {
            None
        } else if !self.breaker.allows(now) {
            self.breaker.allows_as_last_resort().then_some(Standing::Broken)
        } else if self.deserved <= 0.0 {
            Some(Standing::Hung)
        } else if now < self.full_until {
            Some(Standing::Full)
        } else {
            Some(Standing::Ready)
        }
    }

    /// Whether it carries less than its part of that many requests for everyone.
    fn carries_less_than(&self, each: f64) -> bool {
        (self.in_flight as f64) < (each * self.deserved).ceil()
    }

    fn silence(&self, now: u64) -> u64 {
        if self.in_flight > 0 { now.saturating_sub(self.waiting_since) } else { 0 }
    }
}

impl Balance {
    /// Members with these names, all idle and working. The same name keeps the same prefixes.
    pub fn new<Name: AsRef<str>>(names: impl IntoIterator<Item = Name>) -> Self {
        let members = names.into_iter().map(|name| Load::new(name.as_ref(), Breaker::default())).collect();
        Self { members, ..Self::default() }
    }

    /// The members by their places.
    pub fn members(&self) -> &[Load] {
        &self.members
    }

    /// One more member, and whether it has passed a health check. It has to complete a request before it gets many.
    pub fn add(&mut self, name: &str, alive: bool) -> usize {
        let mut breaker = Breaker::unproven();
        if alive {
            breaker.looks_alive();
        }
        let load = Load::new(name, breaker);
        match self.members.iter().position(Load::is_vacant) {
            Some(place) => {
                self.members[place] = load;
                place
            }
            None => {
                self.members.push(load);
                self.members.len() - 1
            }
        }
    }

    /// A member that finishes what it has, and gets nothing new.
    pub fn retire(&mut self, member: usize) {
        let load = &mut self.members[member];
        load.place = if load.in_flight == 0 { Place::Vacant } else { Place::Draining };
    }

    /// Takes the member for a request and counts the request as under way. `None` if nobody is left to ask. A request that
    /// failed on one member excludes it when it tries again.
    pub fn choose(&mut self, affinity: Affinity, excluded: Option<usize>, now: u64) -> Option<Lease> {
        if self.compared_at.is_none_or(|at| at + COMPARE_EVERY <= now) {
            self.compare(now);
        }
        let member = self.prefer(affinity, excluded, now).or_else(|| self.resort(excluded, now))?;
        let load = &mut self.members[member];
        if load.in_flight == 0 {
            load.waiting_since = now;
        }
        load.in_flight += 1;
        Some(Lease { member, attempt: load.breaker.begin(), began: now })
    }

    /// A request has ended, and taught something about its member or not.
    pub fn release(&mut self, lease: Lease, ending: Ending, now: u64) {
        let load = &mut self.members[lease.member];
        let took = now.saturating_sub(lease.began);
        load.in_flight -= 1;
        load.breaker.end(lease.attempt, ending.verdict, now);
        if ending.heard {
            load.waiting_since = now;
            load.full_until = if ending.full_for > 0 { now + ending.full_for } else { load.full_until };
        } else {
            load.pace.given_up(took, self.yardstick, now);
        }
        if let Some(tokens) = ending.tokens {
            load.pace.completed(tokens, took, self.yardstick, now);
        }
        if load.is_draining() && load.in_flight == 0 {
            load.place = Place::Vacant;
        }
    }

    /// A health check has ended.
    pub fn checked(&mut self, member: usize, alive: bool, now: u64) {
        let breaker = &mut self.members[member].breaker;
        if alive {
            breaker.looks_alive();
        } else {
            breaker.looks_dead(now);
        }
    }

    /// A member has shown that it completes requests again.
    pub fn proven(&mut self, member: usize) {
        self.members[member].breaker.close();
    }

    /// Compares the members: what each deserves stays so until the next time.
    fn compare(&mut self, now: u64) {
        self.compared_at = Some(now);
        let taken = self.members.iter().filter(|load| load.place == Place::Taken);
        self.yardstick = Yardstick::of(taken.map(|load| &load.pace), now, &mut self.sorting);
        for load in &mut self.members {
            let deserves = |yardstick| load.pace.deserves(load.silence(now), yardstick, now);
            load.deserved = self.yardstick.map_or(1.0, deserves);
        }
    }

    /// The first in the prefix's order among the ready if it carries less than its share, or else the first that carries
    /// less than the mean. There always is one if anybody is ready.
    fn prefer(&mut self, affinity: Affinity, excluded: Option<usize>, now: u64) -> Option<usize> {
        let (mut taken, mut carried, mut deserved) = (0, 1, 0.0);
        self.ready.clear();
        for (at, load) in self.members.iter().enumerate() {
            taken += usize::from(load.place == Place::Taken);
            if load.standing(now) == Some(Standing::Ready) && excluded != Some(at) {
                self.ready.push(at);
                carried += load.in_flight;
                deserved += load.deserved;
            }
        }
        let (circle, mean) = (Affinity::circle(taken), carried as f64 / deserved);
        let (mut home, mut spill) = ((f64::MIN, None), (f64::MIN, None));
        for &at in &self.ready {
            let load = &self.members[at];
            let draw = affinity.draw(load.identity, load.deserved, circle);
            if draw > home.0 {
                home = (draw, Some(at));
            }
            if draw > spill.0 && load.carries_less_than(mean) {
                spill = (draw, Some(at));
            }
        }
        home.1.filter(|&at| self.members[at].carries_less_than(SHARE * mean)).or(spill.1)
    }

    /// Whom to ask if nobody is ready.
    fn resort(&self, excluded: Option<usize>, now: u64) -> Option<usize> {
        let others = self.members.iter().enumerate().filter(|(at, _)| excluded != Some(*at));
        let reluctance = |load: &Load| {
            let standing = load.standing(now)?;
            Some((standing, load.full_until, load.breaker.retry_at(), load.in_flight))
        };
        others.filter_map(|(at, load)| Some((reluctance(load)?, at))).min().map(|(_, at)| at)
    }
}

#[cfg(test)]
mod tests;
