//! SQLite's side of budgets: a commit adds to the sums of the scopes that are counted, in its own transaction.

use std::collections::{HashMap, HashSet};

use chat::Timestamp;
use rusqlite::{Connection, Transaction, params};

use super::Sqlite;
use super::fold::unfolded_sums;
use crate::StoreError;
use crate::limit_store::{LIMITS_VERSION, UNCOUNTED_SLOT};
use crate::limits::SpentInPeriods;
use crate::rollup::{Entry, Figures, Measured};
use crate::scope::Scope;
use crate::spending::{BudgetPeriod, Spending, SpendingSums};

/// Of the only process that commits.
const SLOT: u64 = UNCOUNTED_SLOT + 1;

/// The scopes that have budgets, as of a version of the limits.
#[derive(Default)]
pub(super) struct CountedScopes {
    version: Option<u64>,
    scopes: HashSet<Scope>,
}

impl CountedScopes {
    /// Counts recorded rows against budgets. Where there are none, this is one look at a version.
    pub(super) fn count(&mut self, transaction: &Transaction<'_>, rows: &[Entry]) -> Result<(), rusqlite::Error> {
        self.refresh(transaction)?;
        if self.scopes.is_empty() {
            return Ok(());
        }
        let mut sums = SpendingSums::default();
        for row in rows {
            let spending = Spending::of(row.outcome.status, row.usage.total);
            sums.add(row.request_id, row.key, row.owner, spending, |scope| self.scopes.contains(scope));
        }
        let mut add = transaction.prepare_cached(ADD)?;
        for (scope, [day, month], Spending { requests, tokens, unmeasured }) in sums.iter() {
            let (scope, day, month) = (scope.to_string(), day.as_millis(), month.as_millis());
            add.execute(params![scope, day, month, SLOT, requests, tokens, unmeasured])?;
        }
        Ok(())
    }

    /// Whoever changes them counts up the version in the same transaction.
    fn refresh(&mut self, transaction: &Transaction<'_>) -> Result<(), rusqlite::Error> {
        let version = transaction.prepare_cached(LIMITS_VERSION)?.query_row([], |row| row.get(0))?;
        if self.version == Some(version) {
            return Ok(());
        }
        let mut list = transaction.prepare_cached("SELECT scope FROM counted_scopes")?;
        let names = list.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
        // A later version may know more kinds of scopes; no row of this one is in them.
        let scopes = names.iter().filter_map(|name| name.parse().ok()).collect();
        *self = Self { version: Some(version), scopes };
        Ok(())
    }
}

/// To the sums of a day and of its month at once.
const ADD: &str = "INSERT INTO spending (scope, period, start, slot, requests, tokens, unmeasured)
    VALUES (?1, 'day', ?2, ?4, ?5, ?6, ?7), (?1, 'month', ?3, ?4, ?5, ?6, ?7)
    ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, tokens = tokens + excluded.tokens,
        unmeasured = unmeasured + excluded.unmeasured";

/// Two look-ups: with `OR`, all days of a scope would be read. Slots from `?4` on.
const SUM: &str = "SELECT 'day', requests, tokens, unmeasured FROM spending
        WHERE scope = ?1 AND period = 'day' AND start = ?2 AND slot >= ?4
    UNION ALL
    SELECT 'month', requests, tokens, unmeasured FROM spending
        WHERE scope = ?1 AND period = 'month' AND start = ?3 AND slot >= ?4";

impl Sqlite {
    /// What scopes have spent, from the sums.
    pub(crate) fn counted_spending(
        &self,
        scopes: &[Scope],
        now: Timestamp,
    ) -> Result<HashMap<Scope, SpentInPeriods>, StoreError> {
        self.with(|connection| {
            let starts = starts(now);
            let sums = scopes.iter().map(|&scope| Ok((scope, sum(connection, scope, starts, UNCOUNTED_SLOT)?)));
            sums.collect()
        })
    }

    /// What a scope has spent, from the ledger.
    pub(crate) fn recorded_spending(&self, scope: Scope, now: Timestamp) -> Result<SpentInPeriods, StoreError> {
        self.with(|connection| recorded(&*connection.transaction()?, scope, now))
    }

    /// What a scope has spent that commits have not counted.
    pub(crate) fn uncounted_spending(&self, scope: Scope, now: Timestamp) -> Result<SpentInPeriods, StoreError> {
        self.with(|connection| {
            let snapshot = connection.transaction()?;
            let counted = sum(&snapshot, scope, starts(now), SLOT)?;
            Ok(recorded(&snapshot, scope, now)?.without(&counted))
        })
    }

    /// A file has one writer at a time: whoever could change the limits has waited already.
    #[expect(clippy::unnecessary_wraps, reason = "PostgreSQL's may fail")]
    pub(crate) fn wait_for_running_commits(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn sum(
    connection: &Connection,
    scope: Scope,
    [day, month]: [u64; 2],
    first_slot: u64,
) -> Result<SpentInPeriods, StoreError> {
    let mut sum = connection.prepare_cached(SUM)?;
    let mut rows = sum.query(params![scope.to_string(), day, month, first_slot])?;
    let mut spent = SpentInPeriods::default();
    while let Some(row) = rows.next()? {
        let period = match row.get_ref(0)?.as_str() {
            Ok("day") => BudgetPeriod::Day,
            Ok("month") => BudgetPeriod::Month,
            _ => return Err(StoreError::Corrupt("period")),
        };
        spent.of_mut(period).add(Spending { requests: row.get(1)?, tokens: row.get(2)?, unmeasured: row.get(3)? });
    }
    Ok(spent)
}

/// When the current day and month began.
fn starts(now: Timestamp) -> [u64; 2] {
    [BudgetPeriod::Day, BudgetPeriod::Month].map(|period| period.start(now).as_millis())
}

/// All in one snapshot.
fn recorded(connection: &Connection, scope: Scope, now: Timestamp) -> Result<SpentInPeriods, StoreError> {
    let mut spent = SpentInPeriods::default();
    let mut list = connection.prepare_cached(
        "SELECT start, status, requests, total_tokens, total_measured FROM rollups
         WHERE span = 3600 AND key_id = ?1 AND start >= ?2",
    )?;
    let first = BudgetPeriod::Month.start(now).as_seconds();
    let mut rows = list.query(params![scope.to_string(), first])?;
    while let Some(row) = rows.next()? {
        let total = Measured { sum: row.get(3)?, count: row.get(4)? };
        let figures = Figures { requests: row.get(2)?, total, ..Figures::default() };
        spent.add_rollup(Timestamp::from_seconds(row.get(0)?), now, row.get(1)?, &figures);
    }
    spent.add_unfolded(&unfolded_sums(connection)?, scope, now);
    Ok(spent)
}
