//! Which member gets the next request: rendezvous hashing with bounded loads. Pure: time comes in as milliseconds.
//!
//! Every prompt prefix has an order of members (`affinity`). The first member gets the request unless its load is a
//! quarter above the mean. Otherwise the next one in that order whose load is below the mean gets it, so that spilled
//! requests find caches, too. In the simulation, spilling to the least loaded member found 3 % less in caches, and
//! filling the next members up to a quarter above the mean cost as much in latency. A slow or silent member gets a
//! smaller share (`pace`). Members that are saturated, hung or broken get requests only if no other is left, in that
//! order. A request that waits at a member that does not respond is moved to another one (`moves`).

mod moves;

use breaker::{Breaker, CallToken, State, Verdict};

use self::moves::{Avoidance, MoveBudget};
pub use self::moves::{MoveReason, WaitingRequest};
pub use crate::affinity::Affinity;
use crate::affinity::stable_hash;
use crate::pace::{Pace, PeerMedian};

/// The maximum of a member's load, relative to the mean.
const MAX_LOAD_FACTOR: f64 = 1.25;
/// How long a member is doubted after it failed at a request at which another member failed, too.
const DOUBT_MS: u64 = 10_000;
/// How often members are compared with their peers.
const COMPARE_INTERVAL_MS: u64 = 100;

/// The state of every member, in slots. A member keeps its slot until it has left and its last request has ended.
#[derive(Debug, Default)]
pub struct Balance {
    members: Vec<MemberState>,
    median: Option<PeerMedian>,
    /// The last median, of any age.
    last_median: Option<PeerMedian>,
    move_budget: MoveBudget,
    compared_at: Option<u64>,
    /// This buffer and the next are kept to avoid allocations per request.
    pace_buffer: Vec<(f64, f64)>,
    ready: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct MemberState {
    name_hash: u64,
    slot: SlotState,
    in_flight: usize,
    breaker: Breaker,
    pace: Pace,
    /// When the member last responded or was idle.
    waiting_since: u64,
    completed_at: Option<u64>,
    /// Requests that were moved away since it last responded.
    given_up: usize,
    /// Consecutive failures.
    failed_health_checks: u32,
    avoidance: Avoidance,
    saturated_until: u64,
    /// Until then retries prefer other members.
    doubted_until: u64,
    share: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Active,
    /// The member has left but has requests in flight.
    Draining,
    Vacant,
}

/// A request in flight at a member.
#[derive(Debug)]
#[must_use = "a lease that is not released counts as load forever"]
pub struct Lease {
    member: usize,
    attempt: CallToken,
    began: u64,
}

impl Lease {
    /// The index of the member's slot.
    pub fn member(&self) -> usize {
        self.member
    }

    /// In milliseconds.
    pub(crate) fn waited(&self, now: u64) -> u64 {
        now.saturating_sub(self.began)
    }
}

/// What the end of a request shows about the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    verdict: Verdict,
    /// Whether there was any response.
    responded: bool,
    tokens: Option<u32>,
    /// In milliseconds.
    saturated_for: u64,
    /// Whether it was moved because the member responded to no request.
    hung: bool,
}

impl Observation {
    pub fn completed(tokens: u32) -> Self {
        Self { tokens: Some(tokens), ..Self::responded(Verdict::Good) }
    }

    /// A response that was no completion.
    pub fn responded(verdict: Verdict) -> Self {
        Self { verdict, responded: true, tokens: None, saturated_for: 0, hung: false }
    }

    /// A timeout, or a client that disconnected.
    pub fn no_response(verdict: Verdict) -> Self {
        Self { responded: false, ..Self::responded(verdict) }
    }

    /// The request was moved to another member.
    pub fn moved(reason: MoveReason) -> Self {
        match reason {
            MoveReason::Silent => Self { hung: true, ..Self::no_response(Verdict::Bad) },
            // Its breaker is open already, or it responds to others.
            MoveReason::Unhealthy | MoveReason::Overdue => Self::no_response(Verdict::Unclear),
        }
    }

    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The member reported that it has no capacity for this number of milliseconds.
    pub fn saturated(verdict: Verdict, saturated_for: u64) -> Self {
        Self { saturated_for, ..Self::responded(verdict) }
    }
}

/// Ordered by preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Eligibility {
    Ready,
    Saturated,
    Hung,
    Broken,
}

impl MemberState {
    fn new(name: &str, breaker: Breaker) -> Self {
        Self {
            // The terminator has always been part of the hash. Without it, prefixes would move to other members.
            name_hash: stable_hash(&[name.as_bytes(), &[0xff]]),
            slot: SlotState::Active,
            in_flight: 0,
            breaker,
            pace: Pace::default(),
            waiting_since: 0,
            completed_at: None,
            given_up: 0,
            failed_health_checks: 0,
            avoidance: Avoidance::default(),
            saturated_until: 0,
            doubted_until: 0,
            share: 1.0,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn is_healthy(&self) -> bool {
        self.breaker.is_closed()
    }

    /// Whether a request, perhaps a probe, may be sent to it and can succeed.
    pub fn is_available(&self, now: u64) -> bool {
        self.slot == SlotState::Active && self.breaker.allows(now) && self.breaker.passes_health_checks()
    }

    pub fn breaker(&self, now: u64) -> State {
        self.breaker.state(now)
    }

    pub fn is_draining(&self) -> bool {
        self.slot == SlotState::Draining
    }

    pub fn is_vacant(&self) -> bool {
        self.slot == SlotState::Vacant
    }

    /// From 0 to 1. Less than 1 if the member is slow or silent.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// In the past unless the member is saturated.
    pub fn saturated_until(&self) -> u64 {
        self.saturated_until
    }

    /// The decayed mean of milliseconds per request.
    pub fn per_request(&self) -> Option<f64> {
        self.pace.per_request()
    }

    /// The decayed mean of milliseconds per token.
    pub fn per_token(&self) -> Option<f64> {
        self.pace.per_token()
    }

    fn eligibility(&self, now: u64) -> Option<Eligibility> {
        if self.slot != SlotState::Active {
            None
        } else if !self.breaker.allows(now) {
            self.breaker.allows_as_last_resort().then_some(Eligibility::Broken)
        } else if self.share <= 0.0 || self.avoidance.is_on(now) {
            Some(Eligibility::Hung)
        } else if now < self.saturated_until {
            Some(Eligibility::Saturated)
        } else {
            Some(Eligibility::Ready)
        }
    }

    /// Whether its load is below that of a member with a full share, scaled to its own share.
    fn is_below(&self, full_load: f64) -> bool {
        (self.in_flight as f64) < (full_load * self.share).ceil()
    }

    fn silence(&self, now: u64) -> u64 {
        if self.in_flight > 0 { now.saturating_sub(self.waiting_since) } else { 0 }
    }
}

impl Balance {
    /// All members are idle and healthy. Prefixes are assigned by name.
    pub fn new<Name: AsRef<str>>(names: impl IntoIterator<Item = Name>) -> Self {
        let members = names.into_iter().map(|name| MemberState::new(name.as_ref(), Breaker::default())).collect();
        Self { members, ..Self::default() }
    }

    /// Indexed by slot. Includes members that have left.
    pub fn members(&self) -> &[MemberState] {
        &self.members
    }

    /// Adds a member, which must complete a request before it gets more. Returns its slot.
    pub fn add(&mut self, name: &str, passed_health_check: bool) -> usize {
        let mut breaker = Breaker::half_open();
        if passed_health_check {
            breaker.health_check_passed();
        }
        let member = MemberState::new(name, breaker);
        match self.members.iter().position(MemberState::is_vacant) {
            Some(slot) => {
                self.members[slot] = member;
                slot
            }
            None => {
                self.members.push(member);
                self.members.len() - 1
            }
        }
    }

    /// Removes a member once its requests in flight have ended. It gets no new ones.
    pub fn retire(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.slot = if member.in_flight == 0 { SlotState::Vacant } else { SlotState::Draining };
    }

    /// Chooses a member for a request and counts the request as in flight. `None` if no member may get it. A retry excludes
    /// the members that failed.
    pub fn choose(&mut self, affinity: Affinity, excluded: &[usize], now: u64) -> Option<Lease> {
        self.compare_if_due(now);
        let slot = self
            .choose_undoubted(affinity, excluded, now)
            .or_else(|| self.choose_ready(affinity, excluded, now))
            .or_else(|| self.choose_last_resort(excluded, now))?;
        Some(self.lease(slot, now))
    }

    /// For a retry, a ready member that is not doubted.
    fn choose_undoubted(&mut self, affinity: Affinity, excluded: &[usize], now: u64) -> Option<usize> {
        let is_doubted = |member: &MemberState| now < member.doubted_until;
        if excluded.is_empty() || !self.members.iter().any(is_doubted) {
            return None;
        }
        let doubted = self.members.iter().enumerate().filter(|(_, member)| is_doubted(member)).map(|(slot, _)| slot);
        let excluded: Vec<usize> = doubted.chain(excluded.iter().copied()).collect();
        self.choose_ready(affinity, &excluded, now)
    }

    fn lease(&mut self, slot: usize, now: u64) -> Lease {
        let member = &mut self.members[slot];
        if member.in_flight == 0 {
            member.waiting_since = now;
        }
        member.in_flight += 1;
        Lease { member: slot, attempt: member.breaker.begin(), began: now }
    }

    pub fn release(&mut self, lease: Lease, observation: Observation, now: u64) {
        let member = &mut self.members[lease.member];
        let took = now.saturating_sub(lease.began);
        member.in_flight -= 1;
        member.breaker.end(lease.attempt, observation.verdict, now);
        if observation.responded {
            member.waiting_since = now;
            member.given_up = 0;
            if observation.saturated_for > 0 {
                member.saturated_until = now + observation.saturated_for;
            }
        } else {
            member.pace.abandoned(took, self.median, now);
        }
        if observation.hung {
            member.given_up += 1;
            member.avoidance.begin(lease.began, now);
        }
        if let Some(tokens) = observation.tokens {
            member.pace.completed(tokens, took, self.median, now);
            member.completed_at = Some(now);
            member.avoidance = Avoidance::default();
            self.move_budget.add_completion();
        }
        if member.is_draining() && member.in_flight == 0 {
            member.slot = SlotState::Vacant;
        }
    }

    /// Records what another member's response to the same request has shown about this one.
    pub fn judge(&mut self, member: usize, verdict: Verdict, now: u64) {
        let breaker = &mut self.members[member].breaker;
        let attempt = breaker.begin();
        breaker.end(attempt, verdict, now);
    }

    /// Records that the member failed at a request at which another one failed, too. The fault may lie with either member or
    /// with the request.
    pub fn doubt(&mut self, member: usize, now: u64) {
        self.members[member].doubted_until = now + DOUBT_MS;
    }

    pub fn record_health_check(&mut self, member: usize, passed: bool, now: u64) {
        let member = &mut self.members[member];
        if passed {
            member.failed_health_checks = 0;
            member.breaker.health_check_passed();
        } else {
            member.failed_health_checks += 1;
            member.breaker.health_check_failed(now);
        }
    }

    /// For a member that is known to complete requests.
    pub fn mark_healthy(&mut self, member: usize) {
        self.members[member].breaker.close();
    }

    fn compare_if_due(&mut self, now: u64) {
        if self.compared_at.is_none_or(|at| at + COMPARE_INTERVAL_MS <= now) {
            self.compare(now);
        }
    }

    /// Compares the members with each other and sets their shares.
    fn compare(&mut self, now: u64) {
        self.compared_at = Some(now);
        let active = self.members.iter().filter(|member| member.slot == SlotState::Active);
        self.median = PeerMedian::from_paces(active.map(|member| &member.pace), now, &mut self.pace_buffer);
        self.last_median = self.median.or(self.last_median);
        for member in &mut self.members {
            member.share = self.median.map_or(1.0, |median| member.pace.share(member.silence(now), median, now));
        }
    }

    /// The ready member with the highest score if its load is below the bound, otherwise the one with the highest score
    /// among those below the mean. There always is one if any member is ready.
    fn choose_ready(&mut self, affinity: Affinity, excluded: &[usize], now: u64) -> Option<usize> {
        let (mut active, mut in_flight, mut shares) = (0, 1, 0.0);
        self.ready.clear();
        for (slot, member) in self.members.iter().enumerate() {
            active += usize::from(member.slot == SlotState::Active);
            if member.eligibility(now) == Some(Eligibility::Ready) && !excluded.contains(&slot) {
                self.ready.push(slot);
                in_flight += member.in_flight;
                shares += member.share;
            }
        }
        let (subset, mean) = (Affinity::subset_fraction(active), in_flight as f64 / shares);
        let (mut home, mut spill) = ((f64::MIN, None), (f64::MIN, None));
        for &slot in &self.ready {
            let member = &self.members[slot];
            let score = affinity.score(member.name_hash, member.share, subset);
            if score > home.0 {
                home = (score, Some(slot));
            }
            if score > spill.0 && member.is_below(mean) {
                spill = (score, Some(slot));
            }
        }
        home.1.filter(|&slot| self.members[slot].is_below(MAX_LOAD_FACTOR * mean)).or(spill.1)
    }

    /// The member for a request if none is ready.
    fn choose_last_resort(&self, excluded: &[usize], now: u64) -> Option<usize> {
        let others = self.members.iter().enumerate().filter(|(slot, _)| !excluded.contains(slot));
        let reluctance = |member: &MemberState| {
            let eligibility = member.eligibility(now)?;
            Some((eligibility, member.saturated_until, member.breaker.retry_at(), member.in_flight))
        };
        others.filter_map(|(slot, member)| Some((reluctance(member)?, slot))).min().map(|(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests;
