//! What requests count against budgets, by day and by month in UTC. Pure.
//!
//! A completion counts, and so does a request whose caller gave up waiting: otherwise whoever hangs up in time would pay
//! nothing. Tokens count as far as a runtime measured them.

use std::collections::BTreeMap;
use std::ops::Range;

use chat::{KeyId, RequestId, Timestamp};
use jiff::Zoned;
use jiff::tz::TimeZone;

use crate::id::AccountId;
use crate::rollup::Figures;
use crate::scope::Scope;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spending {
    pub requests: u64,
    /// As far as they were measured.
    pub tokens: u64,
    /// Completions whose tokens no runtime measured.
    pub unmeasured: u64,
}

impl Spending {
    /// Of one request.
    pub(crate) fn of(status: u16, total_tokens: Option<u32>) -> Self {
        Self {
            requests: counts(status).into(),
            tokens: total_tokens.unwrap_or(0).into(),
            unmeasured: (status == COMPLETED && total_tokens.is_none()).into(),
        }
    }

    /// Of all requests of a roll-up, which ended alike.
    pub(crate) fn of_rollup(status: u16, figures: &Figures) -> Self {
        Self {
            requests: if counts(status) { figures.requests } else { 0 },
            tokens: figures.total.sum,
            unmeasured: if status == COMPLETED { figures.requests.saturating_sub(figures.total.count) } else { 0 },
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.unmeasured += other.unmeasured;
    }

    /// What is left if a part of it was counted elsewhere.
    pub(crate) fn without(self, part: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(part.requests),
            tokens: self.tokens.saturating_sub(part.tokens),
            unmeasured: self.unmeasured.saturating_sub(part.unmeasured),
        }
    }
}

const COMPLETED: u16 = 200;
const CLIENT_CLOSED: u16 = 499;

fn counts(status: u16) -> bool {
    matches!(status, COMPLETED | CLIENT_CLOSED)
}

/// The time after which a budget renews, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetPeriod {
    Day,
    Month,
}

impl BudgetPeriod {
    pub(crate) const ALL: [Self; 2] = [Self::Day, Self::Month];

    /// As people and the database write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The beginning of the one that holds a time.
    pub fn start(self, at: Timestamp) -> Timestamp {
        let at = utc(at);
        timestamp(match self {
            Self::Day => at.start_of_day(),
            Self::Month => at.first_of_month().and_then(|first| first.start_of_day()),
        })
    }

    /// The beginning of the next one.
    pub fn end(self, at: Timestamp) -> Timestamp {
        let at = utc(at);
        timestamp(match self {
            Self::Day => at.tomorrow().and_then(|next| next.start_of_day()),
            Self::Month => at.last_of_month().and_then(|last| last.tomorrow()).and_then(|next| next.start_of_day()),
        })
    }
}

fn utc(time: Timestamp) -> Zoned {
    let time = i64::try_from(time.as_millis()).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    time.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC)
}

/// At the ends of the calendar, 1970.
fn timestamp(time: Result<Zoned, jiff::Error>) -> Timestamp {
    let millis = time.map_or(0, |time| time.timestamp().as_millisecond());
    Timestamp::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// What a commit adds to the sums of scopes, each in a day and in its month.
#[derive(Default)]
pub(crate) struct SpendingSums {
    /// By scope and the beginnings of day and month.
    sums: BTreeMap<(Scope, [Timestamp; 2]), Spending>,
    starts: PeriodStarts,
}

impl SpendingSums {
    /// Adds a request to those of its scopes that are counted.
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
        for scope in Scope::all_of(key, owner).filter(is_counted) {
            let starts = self.starts.of(request.timestamp());
            self.sums.entry((scope, starts)).or_default().add(spending);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Scope, [Timestamp; 2], Spending)> {
        self.sums.iter().map(|(&(scope, starts), &spending)| (scope, starts, spending))
    }
}

/// The beginnings of day and month, of which all rows of a commit nearly always have the same.
#[derive(Default)]
pub(crate) struct PeriodStarts {
    day: Range<Timestamp>,
    starts: [Timestamp; 2],
}

impl PeriodStarts {
    /// In the order of `BudgetPeriod::ALL`.
    pub(crate) fn of(&mut self, time: Timestamp) -> [Timestamp; 2] {
        if !self.day.contains(&time) {
            self.day = BudgetPeriod::Day.start(time)..BudgetPeriod::Day.end(time);
            self.starts = BudgetPeriod::ALL.map(|period| period.start(time));
        }
        self.starts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollup::Measured;

    fn at(text: &str) -> Timestamp {
        let time: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_millis(time.as_millisecond() as u64)
    }

    #[test]
    fn periods_begin_and_end_at_midnight_in_utc() {
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
        for (status, tokens, expected) in [
            (200, Some(7), Spending { requests: 1, tokens: 7, unmeasured: 0 }),
            (200, None, Spending { requests: 1, tokens: 0, unmeasured: 1 }),
            (499, None, Spending { requests: 1, tokens: 0, unmeasured: 0 }),
            (502, None, Spending::default()),
            (403, None, Spending::default()),
        ] {
            let total = Measured { sum: tokens.unwrap_or(0).into(), count: tokens.is_some().into() };
            let figures = Figures { requests: 1, total, ..Figures::default() };
            assert_eq!(Spending::of(status, tokens), expected, "{status}");
            assert_eq!(Spending::of_rollup(status, &figures), expected, "{status}");
        }
    }
}
