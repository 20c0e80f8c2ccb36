//! One replica of the service, reduced to the choice of members. It knows only its own requests.

use breaker::{Breaker, CallToken};
use fastrand::Rng;
use runtimes::balance::{Affinity, Balance, Lease, MoveReason, Observation, WaitingRequest};

use crate::simulation::Time;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// `runtimes::balance`.
    Production,
    /// The same, but waiting requests are not moved.
    ProductionWithoutMoves,
    Random,
    RoundRobin,
    LeastOutstanding,
}

impl Policy {
    pub(crate) const ALL: [Self; 4] = [Self::Production, Self::LeastOutstanding, Self::RoundRobin, Self::Random];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Production => "production",
            Self::ProductionWithoutMoves => "production without moves",
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::LeastOutstanding => "least outstanding",
        }
    }
}

pub(crate) enum Gateway {
    Production(Balance),
    Simple(Simple),
}

pub(crate) enum Ticket {
    Production(Lease),
    Simple(usize, CallToken),
}

/// The simple policies also have breakers, and skip members whose breaker is open.
pub(crate) struct Simple {
    policy: Policy,
    /// Requests in flight, and the breaker.
    members: Vec<(usize, Breaker)>,
    next: usize,
    rng: Rng,
}

impl Gateway {
    pub(crate) fn new(policy: Policy, members: usize, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        match policy {
            Policy::Production | Policy::ProductionWithoutMoves => {
                Self::Production(Balance::new((0..members).map(|at| format!("member {at}"))))
            }
            _ => Self::Simple(Simple {
                policy,
                members: vec![(0, Breaker::default()); members],
                next: rng.usize(..members),
                rng,
            }),
        }
    }

    pub(crate) fn choose(&mut self, affinity: Affinity, failed: Option<usize>, now: Time) -> Option<(usize, Ticket)> {
        match self {
            Self::Production(balance) => {
                let lease = balance.choose(affinity, failed.as_slice(), millis(now))?;
                Some((lease.member(), Ticket::Production(lease)))
            }
            Self::Simple(simple) => {
                let member = simple.choose(failed, millis(now))?;
                let (in_flight, breaker) = &mut simple.members[member];
                *in_flight += 1;
                Some((member, Ticket::Simple(member, breaker.begin())))
            }
        }
    }

    /// Another member for a waiting request, if the balance would move it.
    pub(crate) fn move_elsewhere(
        &mut self,
        ticket: &Ticket,
        affinity: Affinity,
        max_tokens: u32,
        now: Time,
    ) -> Option<(usize, Ticket, MoveReason)> {
        let (Self::Production(balance), Ticket::Production(lease)) = (self, ticket) else { return None };
        let request = WaitingRequest { lease, affinity, max_tokens, excluded: &[lease.member()] };
        let (lease, reason) = balance.move_elsewhere(request, millis(now))?;
        Some((lease.member(), Ticket::Production(lease), reason))
    }

    pub(crate) fn release(&mut self, ticket: Ticket, observation: Observation, now: Time) {
        match (self, ticket) {
            (Self::Production(balance), Ticket::Production(lease)) => balance.release(lease, observation, millis(now)),
            (Self::Simple(simple), Ticket::Simple(member, attempt)) => {
                let (in_flight, breaker) = &mut simple.members[member];
                *in_flight -= 1;
                breaker.end(attempt, observation.verdict(), millis(now));
            }
            _ => unreachable!("a ticket is returned to the gateway that issued it"),
        }
    }

    pub(crate) fn record_health_check(&mut self, member: usize, passed: bool, now: Time) {
        match self {
            Self::Production(balance) => balance.record_health_check(member, passed, millis(now)),
            Self::Simple(simple) if passed => simple.members[member].1.health_check_passed(),
            Self::Simple(simple) => simple.members[member].1.health_check_failed(millis(now)),
        }
    }

    pub(crate) fn is_healthy(&self, member: usize) -> bool {
        match self {
            Self::Production(balance) => balance.members()[member].is_healthy(),
            Self::Simple(simple) => simple.members[member].1.is_closed(),
        }
    }
}

impl Simple {
    fn choose(&mut self, failed: Option<usize>, now: u64) -> Option<usize> {
        let count = self.members.len();
        self.next = (self.next + 1) % count;
        let start = if self.policy == Policy::RoundRobin { self.next } else { self.rng.usize(..count) };
        let members = &self.members;
        let mut allowed =
            (0..count).map(|step| (start + step) % count).filter(|&at| failed != Some(at) && members[at].1.allows(now));
        match self.policy {
            Policy::LeastOutstanding => allowed.min_by_key(|&at| members[at].0),
            _ => allowed.next(),
        }
    }
}

fn millis(now: Time) -> u64 {
    now / 1_000
}
