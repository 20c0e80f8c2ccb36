//! Spending: requests and tokens that count against budgets, by day and by month in UTC. Pure.
//!
//! A completion counts. So does a request whose caller hung up after a runtime had begun: otherwise callers could avoid
//! the count by hanging up early. Tokens count if a runtime measured them.

use std::collections::BTreeMap;

use chat::{KeyId, RequestId, Timestamp};

use crate::usage::latency::{Latencies, Phase};
use crate::usage::rollup::{Figures, Rollups};
use crate::values::{AccountId, BudgetPeriod, Scope};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spending {
    pub requests: u64,
    /// Only measured tokens.
    pub tokens: u64,
    /// Requests whose tokens no runtime measured.
    pub unmeasured: u64,
}

impl Spending {
    /// The spending of one request. `has_begun`: a runtime was called.
    pub(crate) fn from_request(status: u16, has_begun: bool, total_tokens: Option<u32>) -> Self {
        let counts = status == COMPLETED || status == CLIENT_CLOSED && has_begun;
        Self {
            requests: counts.into(),
            tokens: total_tokens.unwrap_or(0).into(),
            unmeasured: (counts && total_tokens.is_none()).into(),
        }
    }

    /// The spending of all requests of a roll-up, which have the same status.
    fn from_rollup(status: u16, figures: &Figures, latencies: &Latencies) -> Self {
        let requests = match status {
            COMPLETED => figures.requests,
            CLIENT_CLOSED => latencies.count(Phase::Inference),
            _ => 0,
        };
        Self { requests, tokens: figures.total.sum, unmeasured: requests.saturating_sub(figures.total.count) }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.unmeasured += other.unmeasured;
    }
}

const COMPLETED: u16 = 200;
const CLIENT_CLOSED: u16 = 499;

/// The spending of one scope in a day and its month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SpentInPeriods {
    pub(crate) day: Spending,
    pub(crate) month: Spending,
}

impl SpentInPeriods {
    pub(crate) fn in_period(&self, period: BudgetPeriod) -> &Spending {
        match period {
            BudgetPeriod::Day => &self.day,
            BudgetPeriod::Month => &self.month,
        }
    }

    pub(crate) fn of_mut(&mut self, period: BudgetPeriod) -> &mut Spending {
        match period {
            BudgetPeriod::Day => &mut self.day,
            BudgetPeriod::Month => &mut self.month,
        }
    }
}

/// The spending of scopes in the current day and month, according to their roll-ups.
#[derive(Default)]
pub(crate) struct RecordedSpending {
    now: Timestamp,
    pub(crate) by_scope: BTreeMap<Scope, SpentInPeriods>,
}

impl RecordedSpending {
    pub(crate) fn at(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// The start of the first of these hours, in seconds since 1970.
    pub(crate) fn first_second(&self) -> u64 {
        BudgetPeriod::Month.start(self.now).as_seconds()
    }

    /// Adds the roll-up of an hour, if it lies in the current day or month.
    pub(crate) fn add(&mut self, scope: Scope, hour: u64, status: u16, figures: &Figures, latencies: &Latencies) {
        for period in BudgetPeriod::ALL {
            if Timestamp::from_seconds(hour) >= period.start(self.now) {
                let spent = self.by_scope.entry(scope).or_default().of_mut(period);
                spent.add(Spending::from_rollup(status, figures, latencies));
            }
        }
    }

    /// Adds the rows that are not yet in the roll-ups.
    pub(crate) fn add_unfolded(&mut self, unfolded: &Rollups, range: &ScopeRange) {
        for (key, figures, latencies) in unfolded.hours().filter(|(key, ..)| range.contains(key.scope)) {
            self.add(key.scope, key.start, key.status, figures, latencies);
        }
    }
}

/// The scopes that a limit applies to, as an interval of their names.
pub(crate) struct ScopeRange {
    pub(crate) first: String,
    pub(crate) last: String,
}

impl ScopeRange {
    pub(crate) fn limited_by(scope: Scope) -> Self {
        match scope {
            Scope::EachPerson => Self { first: "@0".into(), last: "@~".into() },
            other => Self { first: other.to_string(), last: other.to_string() },
        }
    }

    fn contains(&self, scope: Scope) -> bool {
        (&self.first..=&self.last).contains(&&scope.to_string())
    }
}

/// The sums that a commit adds to scopes, each for a day and its month.
#[derive(Default)]
pub(crate) struct SpendingSums {
    /// By scope and the starts of day and month.
    sums: BTreeMap<(Scope, [Timestamp; 2]), Spending>,
}

impl SpendingSums {
    /// Adds a request to each of its scopes that is counted.
    pub(crate) fn add(
        &mut self,
        request: RequestId,
        key: KeyId,
        owner: Option<AccountId>,
        spending: Spending,
        is_counted: impl Fn(&Scope) -> bool,
    ) {
        if spending == Spending::default() {
            return;
        }
        let starts = period_starts(request.timestamp());
        for scope in Scope::all_of(key, owner).filter(is_counted) {
            self.sums.entry((scope, starts)).or_default().add(spending);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Scope, [Timestamp; 2], Spending)> {
        self.sums.iter().map(|(&(scope, starts), &spending)| (scope, starts, spending))
    }
}

/// The starts of the day and month of a time, in the order of `BudgetPeriod::ALL`.
pub(crate) fn period_starts(time: Timestamp) -> [Timestamp; 2] {
    BudgetPeriod::ALL.map(|period| period.start(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::rollup::Measured;

    fn at(text: &str) -> Timestamp {
        let time: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_millis(time.as_millisecond() as u64)
    }

    #[test]
    fn periods_start_and_end_at_midnight_in_utc() {
        for (period, time, start, end) in [
            (BudgetPeriod::Day, "2026-11-16T23:59:59.999Z", "2026-11-16T00:00:00Z", "2026-11-17T00:00:00Z"),
            (BudgetPeriod::Day, "2026-11-16T00:00:00Z", "2026-11-16T00:00:00Z", "2026-11-17T00:00:00Z"),
            (BudgetPeriod::Month, "2026-12-31T12:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            (BudgetPeriod::Month, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            assert_eq!((period.start(at(time)), period.end(at(time))), (at(start), at(end)), "{period:?} {time}");
        }
    }

    #[test]
    fn a_request_counts_as_it_does_in_its_roll_up() {
        for (status, has_begun, tokens, expected) in [
            (200, true, Some(7), Spending { requests: 1, tokens: 7, unmeasured: 0 }),
            (200, true, None, Spending { requests: 1, tokens: 0, unmeasured: 1 }),
            (499, true, None, Spending { requests: 1, tokens: 0, unmeasured: 1 }),
            (499, false, None, Spending::default()),
            (502, true, None, Spending::default()),
            (403, false, None, Spending::default()),
        ] {
            let total = Measured { sum: tokens.unwrap_or(0).into(), count: tokens.is_some().into() };
            let figures = Figures { requests: 1, total, ..Figures::default() };
            let mut latencies = Latencies::default();
            if has_begun {
                latencies.add(Phase::Inference, 1_000);
            }
            assert_eq!(Spending::from_request(status, has_begun, tokens), expected, "{status}");
            assert_eq!(Spending::from_rollup(status, &figures, &latencies), expected, "{status}");
        }
    }
}
