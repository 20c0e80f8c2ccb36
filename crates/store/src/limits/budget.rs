//! Budgets of tokens or requests, and their use. Pure.

use chat::Timestamp;

use crate::limits::spending::Spending;
use crate::values::{Budget, Limit};

/// A limit and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUse {
    pub limit: Limit,
    /// The key's name or the person's e-mail address.
    pub name: Option<String>,
    /// `None` if the limit is not a budget, or is a budget of each person and the viewer sees all people.
    pub budget: Option<BudgetUse>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetUse {
    pub used: u64,
    pub left: u64,
    /// The use at the end of the period at the present pace; `None` too soon after the start of the period.
    pub forecast: Option<u64>,
    /// Requests whose tokens no runtime measured; they are not in `used`.
    pub unmeasured: u64,
    pub renews_at: Timestamp,
}

/// The share of a period that must have passed before a forecast is made.
const FORECAST_AFTER: f64 = 0.05;

impl BudgetUse {
    pub(crate) fn new(budget: Budget, spent: Spending, now: Timestamp) -> Self {
        let (used, renews_at) = (budget.units(spent.requests, spent.tokens), budget.period.end(now));
        let start = budget.period.start(now);
        let passed = now.duration_since(start).as_secs_f64() / renews_at.duration_since(start).as_secs_f64();
        Self {
            used,
            left: budget.amount.saturating_sub(used),
            forecast: (passed >= FORECAST_AFTER).then(|| (used as f64 / passed).round() as u64),
            unmeasured: spent.unmeasured,
            renews_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{BudgetPeriod, BudgetUnit};

    #[test]
    fn a_forecast_extrapolates_once_enough_of_the_period_has_passed() {
        const DAY: u64 = 86_400;
        let budget = Budget { unit: BudgetUnit::Tokens, period: BudgetPeriod::Day, amount: 100 };
        let spent = Spending { tokens: 30, ..Spending::default() };
        for (passed, forecast) in [(0, None), (DAY / 100, None), (DAY / 4, Some(120)), (DAY / 2, Some(60))] {
            let found = BudgetUse::new(budget, spent, Timestamp::from_seconds(20_000 * DAY + passed));
            assert_eq!((found.used, found.left, found.forecast), (30, 70, forecast), "{passed}");
            assert_eq!(found.renews_at, Timestamp::from_seconds(20_001 * DAY));
        }
    }
}
