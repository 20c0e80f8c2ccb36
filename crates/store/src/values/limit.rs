//! Limits: their kinds, amounts, and the periods of budgets, in UTC. Pure.

use std::fmt;
use std::str::FromStr;

use chat::Timestamp;
use jiff::Zoned;
use jiff::tz::TimeZone;

use crate::values::Scope;

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

    /// The name on the command line, in forms and in the database.
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

    /// The name in a sentence: `tokens per day`.
    pub fn describe(self) -> String {
        self.as_str().replace('-', " ")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no such limit; the limits are {}", LimitKind::ALL.map(LimitKind::as_str).join(", "))]
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
    /// Far above any real use.
    const MAX_AMOUNT: u64 = 1_000_000_000_000_000;

    /// Digits may be in groups of three. A separator that could be a decimal point is refused.
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

    /// The one of the two numbers that this budget counts.
    pub(crate) fn units(&self, requests: u64, tokens: u64) -> u64 {
        match self.unit {
            BudgetUnit::Tokens => tokens,
            BudgetUnit::Requests => requests,
        }
    }
}

/// The period after which a budget renews, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetPeriod {
    Day,
    Month,
}

impl BudgetPeriod {
    pub(crate) const ALL: [Self; 2] = [Self::Day, Self::Month];

    /// The name in texts and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The start of the period that contains `at`.
    pub fn start(self, at: Timestamp) -> Timestamp {
        let at = utc(at);
        timestamp(match self {
            Self::Day => at.start_of_day(),
            Self::Month => at.first_of_month().and_then(|first| first.start_of_day()),
        })
    }

    /// The start of the next period.
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

/// 1970 for times outside of the calendar's range.
fn timestamp(time: Result<Zoned, jiff::Error>) -> Timestamp {
    let millis = time.map_or(0, |time| time.timestamp().as_millisecond());
    Timestamp::from_millis(u64::try_from(millis).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_may_be_grouped_but_have_no_decimals() {
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
    fn every_kind_round_trips() {
        for kind in LimitKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!("tokens".parse::<LimitKind>(), Err(LimitKindError));
    }
}
