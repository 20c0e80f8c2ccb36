//! The rule by which a request may run: it fits every budget, every rate and every in-flight limit of its scopes, or it is
//! refused and reserves nothing. Pure.
//!
//! People share a limit of everyone, and keys share that of their person. A free place goes to the party that holds least,
//! then to the party whose last start is longest ago. A single party may use the whole limit.

use std::collections::HashMap;
use std::time::Duration;

use chat::{KeyId, RequestId, Timestamp};

use crate::limits::rate::Rate;
use crate::limits::spending::SpentInPeriods;
use crate::limits::table::{CallerLimits, LimitSet};
use crate::values::{AccountId, Budget, LimitKind, Scope};

/// How long after a start, or after its `Retry-After`, a party is expected to send another request.
const PATIENCE: Duration = Duration::from_secs(3);
/// The `Retry-After` for a limit of requests in flight.
const IN_FLIGHT_RETRY: Duration = Duration::from_secs(1);

/// The maximum use of a request, reserved until its row is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) request: RequestId,
    pub(crate) key: KeyId,
    pub(crate) owner: Option<AccountId>,
    pub(crate) tokens: u64,
}

impl Reservation {
    pub(crate) fn scopes(&self) -> impl Iterator<Item = Scope> + use<> {
        Scope::all_of(self.key, self.owner)
    }

    /// The party that the request counts for among those that share a scope.
    fn party_in(&self, scope: Scope) -> Option<Scope> {
        match scope {
            Scope::Everyone => Some(self.owner.map_or(Scope::Key(self.key), Scope::Owner)),
            Scope::Owner(_) => Some(Scope::Key(self.key)),
            Scope::Key(_) | Scope::EachPerson => None,
        }
    }
}

/// Why a request may not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Budget(BudgetRefusal),
    Limit(LimitReached),
}

/// A budget that does not cover a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRefusal {
    pub scope: Scope,
    pub budget: Budget,
    pub used: u64,
    /// For requests in flight.
    pub reserved: u64,
    /// The maximum use of this request.
    pub needed: u64,
    pub renews_at: Timestamp,
}

/// A limit of requests per minute or in flight that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitReached {
    pub scope: Scope,
    pub kind: LimitKind,
    pub amount: u64,
    pub retry_after: Duration,
}

/// Reservations and rates, by scope.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) scopes: HashMap<Scope, ScopeState>,
}

#[derive(Debug, Default)]
pub(crate) struct ScopeState {
    /// Requests in flight.
    pub(crate) requests: u64,
    /// Reserved for these requests.
    pub(crate) tokens: u64,
    pub(crate) rate: Rate,
    /// The parties that share the scope's limits.
    pub(crate) parties: HashMap<Scope, Share>,
}

/// One party's share of a scope's limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) rate: Rate,
    pub(crate) started_at: Timestamp,
    /// Until when another request is expected.
    pub(crate) active_until: Timestamp,
}

impl State {
    /// Reserves a request's maximum use. `spent` has the spending of its scopes in the day and the month in which the
    /// request arrived.
    pub(crate) fn reserve(
        &mut self,
        limits: &CallerLimits,
        reservation: &Reservation,
        spent: &HashMap<Scope, SpentInPeriods>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        for (scope, limits) in limits.iter() {
            let spent = spent.get(&scope).copied().unwrap_or_default();
            self.check_budgets(scope, limits, &spent, reservation)?;
        }
        // The limit with the longest wait sets `Retry-After`.
        let reached = limits.iter().flat_map(|(scope, limits)| self.reached(scope, limits, reservation, now));
        if let Some(reached) = reached.max_by_key(|reached| reached.retry_after) {
            self.expect_again(reached.scope, reservation, now + reached.retry_after);
            return Err(Refusal::Limit(reached));
        }
        for (scope, limits) in limits.iter() {
            self.start(scope, limits, reservation, now);
        }
        self.add(reservation);
        Ok(())
    }

    /// Counts a reservation that was granted.
    pub(crate) fn add(&mut self, reservation: &Reservation) {
        for scope in reservation.scopes() {
            let state = self.scopes.entry(scope).or_default();
            state.requests += 1;
            state.tokens += reservation.tokens;
        }
    }

    /// Ends a reservation.
    pub(crate) fn release(&mut self, reservation: &Reservation, now: Timestamp) {
        for scope in reservation.scopes() {
            let Some(state) = self.scopes.get_mut(&scope) else { continue };
            state.requests -= 1;
            state.tokens -= reservation.tokens;
            if state.requests == 0 && !state.is_of_use(now) {
                self.scopes.remove(&scope);
            }
        }
    }

    fn check_budgets(
        &self,
        scope: Scope,
        limits: &LimitSet,
        spent: &SpentInPeriods,
        reservation: &Reservation,
    ) -> Result<(), Refusal> {
        let (requests, tokens) = self.scopes.get(&scope).map_or((0, 0), |state| (state.requests, state.tokens));
        for budget in &limits.budgets {
            let spent = spent.in_period(budget.period);
            let (used, reserved) = (budget.units(spent.requests, spent.tokens), budget.units(requests, tokens));
            let needed = budget.units(1, reservation.tokens);
            if used + reserved + needed > budget.amount {
                let renews_at = budget.period.end(reservation.request.timestamp());
                return Err(Refusal::Budget(BudgetRefusal {
                    scope,
                    budget: *budget,
                    used,
                    reserved,
                    needed,
                    renews_at,
                }));
            }
        }
        Ok(())
    }

    fn reached(
        &self,
        scope: Scope,
        limits: &LimitSet,
        reservation: &Reservation,
        now: Timestamp,
    ) -> impl Iterator<Item = LimitReached> + use<> {
        let state = self.scopes.get(&scope);
        let party = reservation.party_in(scope);
        let in_flight = limits.in_flight.and_then(|amount| {
            let free = amount.saturating_sub(state.map_or(0, |state| state.requests));
            let held = |party: Scope, _: &Share| self.scopes.get(&party).map_or(0, |state| state.requests);
            let (kind, retry_after) = (LimitKind::RequestsInFlight, IN_FLIGHT_RETRY);
            let is_reached = free == 0 || parties_ahead(state, party, held, now) >= free;
            is_reached.then_some(LimitReached { scope, kind, amount, retry_after })
        });
        let per_minute = limits.per_minute.and_then(|amount| {
            let rate = state.map(|state| state.rate).unwrap_or_default();
            let (wait, free) = (rate.wait(now, amount), amount.saturating_sub(rate.level(now, amount)));
            let held = |_: Scope, share: &Share| share.rate.level(now, amount);
            // `free` can be 0 without a wait: the level is rounded up.
            let is_reached = wait > Duration::ZERO || parties_ahead(state, party, held, now) >= free.max(1);
            let retry_after = wait.clamp(Duration::from_secs(1), Duration::from_secs(60));
            is_reached.then_some(LimitReached { scope, kind: LimitKind::RequestsPerMinute, amount, retry_after })
        });
        in_flight.into_iter().chain(per_minute)
    }

    fn start(&mut self, scope: Scope, limits: &LimitSet, reservation: &Reservation, now: Timestamp) {
        let state = self.scopes.entry(scope).or_default();
        if let Some(amount) = limits.per_minute {
            state.rate.start(now, amount);
        }
        let is_shared = limits.per_minute.is_some() || limits.in_flight.is_some();
        if let Some(party) = reservation.party_in(scope).filter(|_| is_shared) {
            let share = state.share(party, now);
            limits.per_minute.iter().for_each(|amount| share.rate.start(now, *amount));
            share.started_at = now;
            share.active_until = now + PATIENCE;
        }
    }

    fn expect_again(&mut self, scope: Scope, reservation: &Reservation, retry_at: Timestamp) {
        if let Some(party) = reservation.party_in(scope) {
            let share = self.scopes.entry(scope).or_default().share(party, retry_at);
            share.active_until = retry_at + PATIENCE;
        }
    }
}

impl ScopeState {
    fn is_of_use(&self, now: Timestamp) -> bool {
        self.rate.is_of_use(now) || self.parties.values().any(|share| share.is_of_use(now))
    }

    fn share(&mut self, party: Scope, now: Timestamp) -> &mut Share {
        if !self.parties.contains_key(&party) {
            self.parties.retain(|_, share| share.is_of_use(now));
        }
        self.parties.entry(party).or_default()
    }
}

impl Share {
    pub(crate) fn is_of_use(&self, now: Timestamp) -> bool {
        self.active_until > now || self.rate.is_of_use(now)
    }
}

/// The number of other active parties that hold less, or hold the same and have last started earlier.
fn parties_ahead(
    state: Option<&ScopeState>,
    party: Option<Scope>,
    held: impl Fn(Scope, &Share) -> u64,
    now: Timestamp,
) -> u64 {
    let (Some(state), Some(party)) = (state, party) else { return 0 };
    let own = state.parties.get(&party).copied().unwrap_or_default();
    let place = (held(party, &own), own.started_at);
    let is_ahead = |(other, share): &(&Scope, &Share)| {
        **other != party && share.active_until > now && (held(**other, share), share.started_at) < place
    };
    state.parties.iter().filter(is_ahead).count() as u64
}

#[cfg(test)]
mod tests;
