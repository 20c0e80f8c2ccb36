//! A discrete-event simulation of a fleet of runtimes behind several gateways: the production balance against simple
//! ones.
//!
//! It reads no clock and no system randomness, so the same seed gives the same results on every machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use breaker::Verdict;
use fastrand::Rng;
use runtimes::balance::Observation;

use crate::fleet::{Fleet, Health};
use crate::gateway::{Gateway, Policy, Ticket};
use crate::results::Results;
use crate::traffic::{MAX_TOKENS, Prompt, Traffic};

/// Microseconds.
pub(crate) type Time = u64;
pub(crate) const SECOND: Time = 1_000_000;

/// The equivalent of `runtime.timeout`. Shorter than its default, so that runs are short.
const TIMEOUT: Time = 30 * SECOND;
const CHECK_INTERVAL: Time = SECOND;
/// How often a waiting request checks whether it should be moved.
const MOVE_CHECK_INTERVAL: Time = SECOND / 2;
/// The fraction of a run that is not measured, because caches must fill first.
const WARM_UP_FRACTION: f64 = 0.2;

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) members: usize,
    pub(crate) gateways: usize,
    pub(crate) per_second: f64,
    pub(crate) duration: Time,
    pub(crate) condition: Condition,
    /// Capacity of a member's cache in tokens.
    pub(crate) cache: u32,
    pub(crate) seed: u64,
}

/// Events that happen to the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Calm,
    /// One dies and returns, one is five times slower for a while, one hangs.
    Failures,
    /// One hangs for a while: it accepts requests, and passes its health checks.
    OneHangs,
    /// All are five times slower for a while.
    AllSlow,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    MoveCheck(usize, u64),
    Finished(usize, u64),
    TimedOut(usize, u64),
    Check,
    Health(usize, Health),
}

/// A request in flight.
struct Request {
    prompt: Prompt,
    arrived: Time,
    gateway: usize,
    member: usize,
    ticket: Option<Ticket>,
    /// Unique. Events of earlier attempts are ignored.
    attempt: u64,
    retried: bool,
    moved: bool,
    measured: bool,
}

struct Simulation {
    scenario: Scenario,
    policy: Policy,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    sequence: u64,
    rng: Rng,
    traffic: Traffic,
    fleet: Fleet,
    gateways: Vec<Gateway>,
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    results: Results,
    checks: u64,
    attempts: u64,
}

/// Runs a scenario to its end.
pub(crate) fn simulate(scenario: &Scenario, policy: Policy) -> Results {
    Simulation::new(scenario, policy).run()
}

impl Simulation {
    fn new(scenario: &Scenario, policy: Policy) -> Self {
        // The traffic must not depend on the policy.
        let mut rng = Rng::with_seed(scenario.seed);
        let traffic = Traffic::new(scenario.per_second, rng.u64(..));
        let gateways = (0..scenario.gateways).map(|_| Gateway::new(policy, scenario.members, rng.u64(..))).collect();
        Self {
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            traffic,
            fleet: Fleet::new(scenario.members, scenario.cache),
            gateways,
            requests: Vec::new(),
            free: Vec::new(),
            results: Results::new(policy.name(), scenario.members),
            checks: 0,
            attempts: 0,
            rng,
            policy,
            scenario: scenario.clone(),
        }
    }

    fn run(mut self) -> Results {
        self.schedule_scenario();
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            self.handle(event);
        }
        self.results.lost = self.requests.iter().flatten().count();
        self.results.finish();
        self.results
    }

    fn schedule_scenario(&mut self) {
        self.at(0, Event::Arrival);
        self.at(CHECK_INTERVAL, Event::Check);
        let all = |percent, health| (0..self.scenario.members).map(move |member| (percent, member, health));
        let changes: Vec<(Time, usize, Health)> = match self.scenario.condition {
            Condition::Calm => Vec::new(),
            Condition::Failures => vec![
                (30, 0, Health::Dead),
                (45, 0, Health::Well),
                (40, 1, Health::Slow),
                (70, 1, Health::Well),
                (60, 2, Health::Hung),
                (85, 2, Health::Well),
            ],
            Condition::OneHangs => vec![(30, 0, Health::Hung), (80, 0, Health::Well)],
            Condition::AllSlow => all(30, Health::Slow).chain(all(70, Health::Well)).collect(),
        };
        for (percent, member, health) in changes {
            self.at(percent * (self.scenario.duration / 100), Event::Health(member, health));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival => self.arrive(),
            Event::Finished(id, attempt) if self.is_current(id, attempt) => self.finish(id),
            Event::TimedOut(id, attempt) if self.is_current(id, attempt) => self.time_out(id),
            Event::MoveCheck(id, attempt) if self.is_current(id, attempt) => self.check_move(id),
            Event::Finished(..) | Event::TimedOut(..) | Event::MoveCheck(..) => {}
            Event::Check => self.check(),
            Event::Health(member, health) => self.change(member, health),
        }
    }

    fn arrive(&mut self) {
        let request = Request {
            prompt: self.traffic.next(),
            arrived: self.now,
            gateway: self.rng.usize(..self.gateways.len()),
            member: 0,
            ticket: None,
            attempt: 0,
            retried: false,
            moved: false,
            measured: self.now as f64 >= self.scenario.duration as f64 * WARM_UP_FRACTION,
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[id] = Some(request);
        self.send(id, None);
        let interval = -(1.0 - self.rng.f64()).ln() / self.scenario.per_second;
        let next = self.now + (interval * SECOND as f64) as Time;
        if next < self.scenario.duration {
            self.at(next, Event::Arrival);
        }
    }

    /// Sends a request to the member that its gateway chooses. Like the pool, it retries once on another member.
    fn send(&mut self, id: usize, failed: Option<usize>) {
        let Some(request) = &mut self.requests[id] else { return };
        let chosen = self.gateways[request.gateway].choose(request.prompt.affinity(), failed, self.now);
        let Some((member, ticket)) = chosen else { return self.fail(id) };
        self.begin(id, member, ticket);
    }

    fn begin(&mut self, id: usize, member: usize, ticket: Ticket) {
        let Some(request) = &mut self.requests[id] else { return };
        request.member = member;
        request.ticket = Some(ticket);
        self.attempts += 1;
        request.attempt = self.attempts;
        let (attempt, deadline) = (request.attempt, request.arrived + TIMEOUT);
        if self.may_move(id) {
            self.at(self.now + MOVE_CHECK_INTERVAL, Event::MoveCheck(id, attempt));
        }
        let Some(request) = &mut self.requests[id] else { return };
        match self.fleet.health(member) {
            Health::Dead => self.refused(id),
            Health::Hung => self.at(deadline, Event::TimedOut(id, attempt)),
            Health::Well | Health::Slow => {
                let (end, found) = self.fleet.begin(member, &request.prompt, self.now);
                if request.measured {
                    self.results.record_lookup(found, request.prompt.tokens(), member);
                }
                match end <= deadline {
                    true => self.at(end, Event::Finished(id, attempt)),
                    false => self.at(deadline, Event::TimedOut(id, attempt)),
                }
            }
        }
    }

    fn may_move(&self, id: usize) -> bool {
        self.policy == Policy::Production && self.requests[id].as_ref().is_some_and(|request| !request.moved)
    }

    /// Moves a request if its gateway decides to.
    fn check_move(&mut self, id: usize) {
        let Some(request) = &self.requests[id] else { return };
        let Some(ticket) = &request.ticket else { return };
        let (from, attempt, affinity) = (request.member, request.attempt, request.prompt.affinity());
        let moved = self.gateways[request.gateway].move_elsewhere(ticket, affinity, MAX_TOKENS, self.now);
        let Some((member, ticket, reason)) = moved else {
            return self.at(self.now + MOVE_CHECK_INTERVAL, Event::MoveCheck(id, attempt));
        };
        self.release(id, Observation::moved(reason));
        self.fleet.drop_one(from);
        if let Some(request) = &mut self.requests[id] {
            request.moved = true;
            self.results.moved += u64::from(request.measured);
        }
        self.begin(id, member, ticket);
    }

    fn time_out(&mut self, id: usize) {
        self.release(id, Observation::no_response(Verdict::Bad));
        if let Some(request) = &self.requests[id] {
            self.fleet.drop_one(request.member);
        }
        self.fail(id);
    }

    fn refused(&mut self, id: usize) {
        self.release(id, Observation::responded(Verdict::Bad));
        let Some(request) = &mut self.requests[id] else { return };
        if std::mem::replace(&mut request.retried, true) {
            self.fail(id);
        } else {
            let failed = request.member;
            self.send(id, Some(failed));
        }
    }

    fn finish(&mut self, id: usize) {
        let Some(completion) = self.requests[id].as_ref().map(|request| request.prompt.completion) else { return };
        self.release(id, Observation::completed(completion));
        if let Some(request) = self.end(id) {
            self.fleet.end(request.member, &request.prompt);
            self.traffic.append_completion(&request.prompt);
            if request.measured {
                self.results.record_latency(self.now - request.arrived);
            }
        }
    }

    fn fail(&mut self, id: usize) {
        if self.end(id).is_some_and(|request| request.measured) {
            self.results.failed += 1;
        }
    }

    fn end(&mut self, id: usize) -> Option<Request> {
        self.free.push(id);
        self.requests[id].take()
    }

    fn release(&mut self, id: usize, observation: Observation) {
        let Some(request) = &mut self.requests[id] else { return };
        if let Some(ticket) = request.ticket.take() {
            self.gateways[request.gateway].release(ticket, observation, self.now);
        }
    }

    /// Changes a member's health. Its requests in flight fail or hang with it.
    fn change(&mut self, member: usize, health: Health) {
        self.fleet.change(member, health, self.now);
        let here = |request: &Request| request.member == member && request.ticket.is_some();
        let ids: Vec<usize> =
            (0..self.requests.len()).filter(|&id| self.requests[id].as_ref().is_some_and(here)).collect();
        for id in ids {
            let Some(request) = &mut self.requests[id] else { continue };
            match health {
                Health::Dead => self.refused(id),
                Health::Hung => {
                    // Invalidates the event that would have finished the request.
                    self.attempts += 1;
                    request.attempt = self.attempts;
                    let (deadline, attempt) = (request.arrived + TIMEOUT, request.attempt);
                    self.at(deadline, Event::TimedOut(id, attempt));
                    if self.may_move(id) {
                        self.at(self.now + MOVE_CHECK_INTERVAL, Event::MoveCheck(id, attempt));
                    }
                }
                Health::Well | Health::Slow => {}
            }
        }
    }

    /// A hung member passes its health checks, like a runtime whose workers are stuck. Unhealthy ones are checked more
    /// often.
    fn check(&mut self) {
        self.checks += 1;
        for gateway in &mut self.gateways {
            for member in 0..self.scenario.members {
                if self.checks.is_multiple_of(5) || !gateway.is_healthy(member) {
                    gateway.record_health_check(member, self.fleet.health(member) != Health::Dead, self.now);
                }
            }
        }
        if self.now as f64 >= self.scenario.duration as f64 * WARM_UP_FRACTION && self.now < self.scenario.duration {
            self.results.record_load(&self.fleet);
        }
        if self.now < self.scenario.duration {
            self.at(self.now + CHECK_INTERVAL, Event::Check);
        }
    }

    fn is_current(&self, id: usize, attempt: u64) -> bool {
        self.requests[id].as_ref().is_some_and(|request| request.attempt == attempt && request.ticket.is_some())
    }

    fn at(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }
}
