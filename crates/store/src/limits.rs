//! Limits of a key, a person or everyone, and how budgets stand. Pure; `limit_store` reads and changes them, and `spending`
//! is what budgets are compared with.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use chat::{KeyId, Timestamp};

use crate::id::AccountId;
use crate::quota::QuotaLimits;
use crate::rollup::{Figures, Rollups};
use crate::scope::Scope;
use crate::spending::{BudgetPeriod, Spending};

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitKind {
    Budget(BudgetUnit, BudgetPeriod),
    RequestsPerMinute,
    RequestsInFlight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetUnit {
    Tokens,
    Requests,
}

impl LimitKind {
    pub const ALL: [Self; 6] = [
        Self::Budget(BudgetUnit::Tokens, BudgetPeriod::Day),
        Self::Budget(BudgetUnit::Tokens, BudgetPeriod::Month),
        Self::Budget(BudgetUnit::Requests, BudgetPeriod::Day),
        Self::Budget(BudgetUnit::Requests, BudgetPeriod::Month),
        Self::RequestsPerMinute,
        Self::RequestsInFlight,
    ];

    /// As the command line, forms and the database write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Budget(BudgetUnit::Tokens, BudgetPeriod::Day) => "tokens-per-day",
            Self::Budget(BudgetUnit::Tokens, BudgetPeriod::Month) => "tokens-per-month",
            Self::Budget(BudgetUnit::Requests, BudgetPeriod::Day) => "requests-per-day",
            Self::Budget(BudgetUnit::Requests, BudgetPeriod::Month) => "requests-per-month",
            Self::RequestsPerMinute => "requests-per-minute",
            Self::RequestsInFlight => "requests-in-flight",
        }
    }

    /// As a sentence has it: `tokens per day`.
    pub fn describe(self) -> String {
        self.as_str().replace('-', " ")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no such limit; there are {}", LimitKind::ALL.map(LimitKind::as_str).join(", "))]
pub struct LimitKindError;

impl FromStr for LimitKind {
    type Err = LimitKindError;

    fn from_str(text: &str) -> Result<Self, LimitKindError> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(LimitKindError)
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub scope: Scope,
    pub kind: LimitKind,
    pub amount: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the amount is a whole number of at most 1,000,000,000,000,000")]
pub struct LimitAmountError;

impl Limit {
    /// Far more than anybody can use.
    const MAX_AMOUNT: u64 = 1_000_000_000_000_000;

    /// Digits may be in groups of three, as people write them. What could be a decimal point is refused.
    pub fn parse_amount(typed: &str) -> Result<u64, LimitAmountError> {
        let is_separator = |character: char| matches!(character, ',' | '.' | '\'' | '_') || character.is_whitespace();
        let mut groups = typed.trim().split(is_separator);
        let first = groups.next().unwrap_or_default();
        let rest: Vec<&str> = groups.collect();
        let is_grouped = rest.is_empty() || (1..=3).contains(&first.len()) && rest.iter().all(|group| group.len() == 3);
        let digits = first.to_owned() + &rest.concat();
        let is_number = is_grouped && digits.bytes().all(|byte| byte.is_ascii_digit());
        let amount = digits.parse().ok().filter(|amount| is_number && *amount <= Self::MAX_AMOUNT);
        amount.ok_or(LimitAmountError)
    }

    pub(crate) fn budget(&self) -> Option<Budget> {
        match self.kind {
            LimitKind::Budget(unit, period) => Some(Budget { unit, period, amount: self.amount }),
            LimitKind::RequestsPerMinute | LimitKind::RequestsInFlight => None,
        }
    }
}

/// A limit, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUse {
    pub limit: Limit,
    /// `None` for what is no budget.
    pub budget: Option<BudgetUse>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetUse {
    pub used: u64,
    pub left: u64,
    /// What will be used at the end of the period if it goes on like this; `None` too soon after its beginning.
    pub forecast: Option<u64>,
    /// Completions whose tokens no runtime measured; they are not in `used`.
    pub unmeasured: u64,
    pub renews_at: Timestamp,
}

/// The part of a period after which it can be told how it goes on.
const FORECAST_AFTER: f64 = 0.05;

impl BudgetUse {
    pub(crate) fn new(budget: Budget, spent: Option<&SpentInPeriods>, now: Timestamp) -> Self {
        let spent = spent.copied().unwrap_or_default();
        let (used, renews_at) = (budget.used(&spent), budget.period.end(now));
        let start = budget.period.start(now);
        let passed = now.duration_since(start).as_secs_f64() / renews_at.duration_since(start).as_secs_f64();
        Self {
            used,
            left: budget.amount.saturating_sub(used),
            forecast: (passed >= FORECAST_AFTER).then(|| (used as f64 / passed).round() as u64),
            unmeasured: spent.of(budget.period).unmeasured,
            renews_at,
        }
    }
}

/// A tokens or requests budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub unit: BudgetUnit,
    pub period: BudgetPeriod,
    pub amount: u64,
}

impl Budget {
    pub fn kind(&self) -> LimitKind {
        LimitKind::Budget(self.unit, self.period)
    }

    pub fn used(&self, spent: &SpentInPeriods) -> u64 {
        let spending = spent.of(self.period);
        match self.unit {
            BudgetUnit::Tokens => spending.tokens,
            BudgetUnit::Requests => spending.requests,
        }
    }
}

/// The spending of one scope in the current day and month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpentInPeriods {
    pub day: Spending,
    pub month: Spending,
}

impl SpentInPeriods {
    pub fn of(&self, period: BudgetPeriod) -> &Spending {
        match period {
            BudgetPeriod::Day => &self.day,
            BudgetPeriod::Month => &self.month,
        }
    }

    /// Adds the roll-up of an hour, if it lies in the current day or month.
    pub(crate) fn add_rollup(&mut self, hour: Timestamp, now: Timestamp, status: u16, figures: &Figures) {
        for period in BudgetPeriod::ALL.into_iter().filter(|period| hour >= period.start(now)) {
            self.of_mut(period).add(Spending::of_rollup(status, figures));
        }
    }

    /// Adds the rows of a scope that are not in its roll-ups yet.
    pub(crate) fn add_unfolded(&mut self, unfolded: &Rollups, scope: Scope, now: Timestamp) {
        for (key, figures, _) in unfolded.hours().filter(|(key, ..)| key.scope == scope) {
            self.add_rollup(Timestamp::from_seconds(key.start), now, key.status, figures);
        }
    }

    pub(crate) fn without(&self, part: &Self) -> Self {
        Self { day: self.day.without(part.day), month: self.month.without(part.month) }
    }

    pub(crate) fn of_mut(&mut self, period: BudgetPeriod) -> &mut Spending {
        match period {
            BudgetPeriod::Day => &mut self.day,
            BudgetPeriod::Month => &mut self.month,
        }
    }
}

/// A budget of which nothing is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentBudget {
    pub scope: Scope,
    pub budget: Budget,
    pub used: u64,
    pub renews_at: Timestamp,
}

/// All limits of one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeLimits {
    pub scope: Scope,
    pub budgets: Vec<Budget>,
    pub per_minute: Option<u64>,
    pub in_flight: Option<u64>,
    /// Whether `spending` holds all that was spent; otherwise the ledger itself is summed up.
    pub(crate) is_counted: bool,
}

impl ScopeLimits {
    /// Those that are not budgets, if there are any.
    pub(crate) fn quota(&self) -> Option<QuotaLimits> {
        let limits = QuotaLimits { per_minute: self.per_minute, in_flight: self.in_flight };
        (self.per_minute.is_some() || self.in_flight.is_some()).then_some(limits)
    }

    pub(crate) fn spent_budget(&self, spent: &SpentInPeriods, now: Timestamp) -> Option<SpentBudget> {
        let budget = *self.budgets.iter().find(|budget| budget.used(spent) >= budget.amount)?;
        let (used, renews_at) = (budget.used(spent), budget.period.end(now));
        Some(SpentBudget { scope: self.scope, budget, used, renews_at })
    }
}

/// The limits of a caller: the key's own, those of its owner and everyone's.
#[derive(Debug, Clone, Default)]
pub struct CallerLimits([Option<Arc<ScopeLimits>>; 3]);

impl CallerLimits {
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ScopeLimits>> {
        self.0.iter().flatten()
    }

    pub(crate) fn with_budgets(&self) -> impl Iterator<Item = &Arc<ScopeLimits>> {
        self.iter().filter(|limits| !limits.budgets.is_empty())
    }
}

/// All limits there are.
#[derive(Debug, Default)]
pub(crate) struct LimitTable {
    pub(crate) version: u64,
    by_scope: HashMap<Scope, Arc<ScopeLimits>>,
}

impl LimitTable {
    pub(crate) fn new(version: u64, limits: impl IntoIterator<Item = (Limit, bool)>) -> Self {
        let mut by_scope: HashMap<Scope, ScopeLimits> = HashMap::new();
        for (Limit { scope, kind, amount }, is_counted) in limits {
            let empty = ScopeLimits { scope, budgets: Vec::new(), per_minute: None, in_flight: None, is_counted };
            let of_scope = by_scope.entry(scope).or_insert(empty);
            match kind {
                LimitKind::Budget(unit, period) => of_scope.budgets.push(Budget { unit, period, amount }),
                LimitKind::RequestsPerMinute => of_scope.per_minute = Some(amount),
                LimitKind::RequestsInFlight => of_scope.in_flight = Some(amount),
            }
        }
        let by_scope = by_scope.into_iter().map(|(scope, limits)| (scope, Arc::new(limits))).collect();
        Self { version, by_scope }
    }

    pub(crate) fn of(&self, key: KeyId, owner: Option<AccountId>) -> CallerLimits {
        if self.by_scope.is_empty() {
            return CallerLimits::default();
        }
        let mut limits = CallerLimits::default();
        for (of_scope, scope) in limits.0.iter_mut().zip(Scope::all_of(key, owner)) {
            *of_scope = self.by_scope.get(&scope).cloned();
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_goes_on_as_before_once_some_time_has_passed() {
        const DAY: u64 = 86_400;
        let budget = Budget { unit: BudgetUnit::Tokens, period: BudgetPeriod::Day, amount: 100 };
        let spent = SpentInPeriods { day: Spending { tokens: 30, ..Spending::default() }, ..SpentInPeriods::default() };
        for (passed, forecast) in [(0, None), (DAY / 100, None), (DAY / 4, Some(120)), (DAY / 2, Some(60))] {
            let found = BudgetUse::new(budget, Some(&spent), Timestamp::from_seconds(20_000 * DAY + passed));
            assert_eq!((found.used, found.left, found.forecast), (30, 70, forecast), "{passed}");
            assert_eq!(found.renews_at, Timestamp::from_seconds(20_001 * DAY));
        }
    }

    #[test]
    fn an_amount_is_read_as_people_write_it() {
        for (typed, amount) in [
            ("1000", 1_000),
            ("1,000,000", 1_000_000),
            ("1.000.000", 1_000_000),
            ("1 000", 1_000),
            (" 12\u{a0}345 ", 12_345),
            ("0", 0),
            ("1000000000000000", Limit::MAX_AMOUNT),
        ] {
            assert_eq!(Limit::parse_amount(typed), Ok(amount), "{typed}");
        }
        let wrong =
            ["", ",", ",000", "1,", "1,00", "2.5", "1000.00", "1000,000", "-1", "+1", "1e9", "1000000000000001"];
        for typed in wrong.into_iter().chain(["99999999999999999999999"]) {
            assert_eq!(Limit::parse_amount(typed), Err(LimitAmountError), "{typed}");
        }
    }

    #[test]
    fn every_kind_is_read_as_it_is_written() {
        for kind in LimitKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!("tokens".parse::<LimitKind>(), Err(LimitKindError));
    }
}
