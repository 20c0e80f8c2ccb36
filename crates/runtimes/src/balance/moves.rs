//! When a waiting request is moved to another member.
//!
//! A completion arrives whole, so a long one looks like one that never arrives. They are distinguished by the request's
//! limit of tokens, the time that the median member needs for so long a completion, and the responses of the member and
//! its peers meanwhile. If its peers are as silent, moving would not help, and would only add load. Requests never leave
//! a single member. A request is moved at most once, and only to a member that is ready.

use super::{Balance, Lease, MemberState, SlotState};
use crate::affinity::Affinity;

/// With at least this number of requests, a member counts as silent after the time that a few of them take, because not
/// all of them are long.
const MANY_REQUESTS: usize = 4;
/// If the member responds to other requests, a request is moved only after this multiple of its tolerated wait.
const OVERDUE_FACTOR: f64 = 2.0;
/// Uncertain moves are limited to this fraction of completions, after a few that are free.
const MOVES_PER_COMPLETION: f64 = 0.05;
const MAX_BUDGET: f64 = 5.0;
const INITIAL_AVOIDANCE_MS: u64 = 1_000;
const MAX_AVOIDANCE_MS: u64 = 15_000;
/// A request is moved as `Unhealthy` once the breaker has opened, after three failures in a row, and at least this
/// number of the last health checks have failed.
const UNHEALTHY_CHECKS: u32 = 2;

/// A request without a response so far.
#[derive(Debug, Clone, Copy)]
pub struct WaitingRequest<'a> {
    pub lease: &'a Lease,
    pub affinity: Affinity,
    pub max_tokens: u32,
    /// Members that must not get it, including the present one.
    pub excluded: &'a [usize],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveReason {
    /// The member fails its health checks.
    Unhealthy,
    /// It has responded to no request in that time.
    Silent,
    /// It responds to others.
    Overdue,
}

impl MoveReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unhealthy => "it fails its health checks",
            Self::Silent => "it has responded to no request for longer than its peers would have taken",
            Self::Overdue => "a request has waited much longer than its peers would have taken",
        }
    }
}

/// Limits moves that the responses of peers do not justify.
#[derive(Debug, Clone)]
pub(super) struct MoveBudget(f64);

impl Default for MoveBudget {
    fn default() -> Self {
        Self(MAX_BUDGET)
    }
}

impl MoveBudget {
    pub(super) fn add_completion(&mut self) {
        self.0 = (self.0 + MOVES_PER_COMPLETION).min(MAX_BUDGET);
    }

    fn take(&mut self) -> bool {
        let is_left = self.0 >= 1.0;
        if is_left {
            self.0 -= 1.0;
        }
        is_left
    }
}

/// How long a member that hung is avoided, even if it passes its health checks. Grows until it completes a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Avoidance {
    until: u64,
    backoff: u64,
}

impl Avoidance {
    pub(super) fn is_on(&self, now: u64) -> bool {
        now < self.until
    }

    /// Records that a request hung. A request that was sent before the last avoidance ended changes nothing.
    pub(super) fn begin(&mut self, sent_at: u64, now: u64) {
        if self.backoff == 0 || sent_at >= self.until {
            self.backoff = (self.backoff * 2).clamp(INITIAL_AVOIDANCE_MS, MAX_AVOIDANCE_MS);
            self.until = now + self.backoff;
        }
    }
}

impl Balance {
    /// Leases another member for a request that should no longer wait at its member. The caller must then release the
    /// former lease with `Observation::moved`.
    pub fn move_elsewhere(&mut self, request: WaitingRequest<'_>, now: u64) -> Option<(Lease, MoveReason)> {
        self.compare_if_due(now);
        let (reason, is_certain) = self.reason_to_move(&request, now)?;
        let slot = self.choose_ready(request.affinity, request.excluded, now)?;
        (is_certain || self.move_budget.take()).then(|| (self.lease(slot, now), reason))
    }

    /// Why the request should be moved, and whether that is certain.
    fn reason_to_move(&self, request: &WaitingRequest<'_>, now: u64) -> Option<(MoveReason, bool)> {
        let lease = request.lease;
        let member = &self.members[lease.member];
        if member.failed_health_checks >= UNHEALTHY_CHECKS && member.breaker.has_opened_since(lease.attempt) {
            return Some((MoveReason::Unhealthy, true));
        }
        let (median, waited) = (self.last_median?, lease.waited(now) as f64);
        let wait = median.tolerated_wait(request.max_tokens);
        let tolerated =
            if member.in_flight + member.given_up >= MANY_REQUESTS { median.min_tolerated_wait() } else { wait };
        let is_silent = |member: &MemberState| member.silence(now) as f64 >= tolerated;
        if waited < tolerated {
            return None;
        } else if !is_silent(member) {
            return (waited >= OVERDUE_FACTOR * wait).then_some((MoveReason::Overdue, false));
        }
        let peers = self.members.iter().enumerate().filter(|(slot, _)| *slot != lease.member);
        let peers = peers.map(|(_, peer)| peer).filter(|peer| peer.slot == SlotState::Active);
        let (mut responding, mut silent) = (0, 0);
        for peer in peers {
            responding += usize::from(peer.completed_at.is_some_and(|at| at > lease.began));
            silent += usize::from(is_silent(peer));
        }
        match silent {
            _ if responding > silent => Some((MoveReason::Silent, true)),
            // Uncertain, because the peers had no work.
            0 => Some((MoveReason::Silent, false)),
            _ => None,
        }
    }
}
