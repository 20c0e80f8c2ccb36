//! All limits in memory, and which of them apply to a caller. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use chat::KeyId;

use crate::values::{AccountId, Budget, Limit, LimitKind, Scope};

/// The limits of one scope.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LimitSet {
    pub(crate) budgets: Vec<Budget>,
    pub(crate) per_minute: Option<u64>,
    pub(crate) in_flight: Option<u64>,
}

impl LimitSet {
    fn add(&mut self, kind: LimitKind, amount: u64) {
        match kind {
            LimitKind::Budget(unit, period) => self.budgets.push(Budget { unit, period, amount }),
            LimitKind::RequestsPerMinute => self.per_minute = Some(amount),
            LimitKind::RequestsInFlight => self.in_flight = Some(amount),
        }
    }

    /// These limits, and those of `others` whose kind is not among them.
    fn or(&self, others: &Self) -> Self {
        let is_new = |other: &&Budget| self.budgets.iter().all(|budget| budget.kind() != other.kind());
        Self {
            budgets: self.budgets.iter().chain(others.budgets.iter().filter(is_new)).copied().collect(),
            per_minute: self.per_minute.or(others.per_minute),
            in_flight: self.in_flight.or(others.in_flight),
        }
    }
}

/// The limits that apply to a caller, by scope.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallerLimits([Option<(Scope, Arc<LimitSet>)>; 3]);

impl CallerLimits {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Scope, &LimitSet)> {
        self.0.iter().flatten().map(|(scope, limits)| (*scope, &**limits))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

#[derive(Debug, Default)]
pub(crate) struct LimitTable {
    /// Random; differs after each change.
    pub(crate) version: u64,
    by_scope: HashMap<Scope, Arc<LimitSet>>,
}

impl LimitTable {
    pub(crate) fn new(version: u64, limits: impl IntoIterator<Item = Limit>) -> Self {
        let mut by_scope: HashMap<Scope, LimitSet> = HashMap::new();
        for Limit { scope, kind, amount } in limits {
            by_scope.entry(scope).or_default().add(kind, amount);
        }
        if let Some(each) = by_scope.get(&Scope::EachPerson).cloned() {
            let people = by_scope.iter_mut().filter(|(scope, _)| matches!(scope, Scope::Owner(_)));
            people.for_each(|(_, limits)| *limits = limits.or(&each));
        }
        Self { version, by_scope: by_scope.into_iter().map(|(scope, limits)| (scope, Arc::new(limits))).collect() }
    }

    pub(crate) fn limits_of(&self, key: KeyId, owner: Option<AccountId>) -> CallerLimits {
        let mut limits = CallerLimits::default();
        if self.by_scope.is_empty() {
            return limits;
        }
        for (found, scope) in limits.0.iter_mut().zip(Scope::all_of(key, owner)) {
            let each = || self.by_scope.get(&Scope::EachPerson).filter(|_| matches!(scope, Scope::Owner(_)));
            *found = self.by_scope.get(&scope).or_else(each).map(|limits| (scope, limits.clone()));
        }
        limits
    }

    /// Whether commits count the spending of a scope.
    pub(crate) fn has_budget(&self, scope: Scope) -> bool {
        let has_budget = |scope: &Scope| self.by_scope.get(scope).is_some_and(|limits| !limits.budgets.is_empty());
        has_budget(&scope) || matches!(scope, Scope::Owner(_)) && has_budget(&Scope::EachPerson)
    }

    pub(crate) fn has_budgets(&self) -> bool {
        self.by_scope.values().any(|limits| !limits.budgets.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_one_person_overrides_that_of_each_person() {
        let (ada, bob): (AccountId, AccountId) = ("aaaaaaaaaaaa".parse().unwrap(), "bbbbbbbbbbbb".parse().unwrap());
        let key: KeyId = "000000000001".parse().unwrap();
        let limit = |scope, kind, amount| Limit { scope, kind, amount };
        let table = LimitTable::new(
            1,
            [
                limit(Scope::EachPerson, LimitKind::RequestsPerMinute, 10),
                limit(Scope::EachPerson, LimitKind::RequestsInFlight, 2),
                limit(Scope::Owner(ada), LimitKind::RequestsPerMinute, 99),
            ],
        );
        for (owner, expected) in [(Some(ada), Some((99, 2))), (Some(bob), Some((10, 2))), (None, None)] {
            let found = table.limits_of(key, owner);
            let found = found.iter().next().map(|(scope, limits)| {
                assert_eq!(Some(scope), owner.map(Scope::Owner));
                (limits.per_minute.unwrap(), limits.in_flight.unwrap())
            });
            assert_eq!(found, expected);
        }
    }
}
