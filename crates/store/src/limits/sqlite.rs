//! SQLite's part of limits. One process enforces the limits of a file: reservations are in its memory, and end with it.
//! Another service on the same file refuses callers with limits. Spending is in the file: a commit's transaction adds to
//! the sums of the scopes that have budgets.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, OnceLock};

use chat::Timestamp;
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, params};

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::database::sqlite::Sqlite;
use crate::limits::changes::LIMITS_VERSION;
use crate::limits::permit::{Keeper, Permit, ReserveError};
use crate::limits::spending::{Spending, SpendingSums, SpentInPeriods, period_starts};
use crate::limits::state::{Reservation, State};
use crate::limits::table::{CallerLimits, LimitTable};
use crate::usage::rollup::Entry;
use crate::values::{BudgetPeriod, Limit, Scope};

/// The slot of commits; slot 0 has the spending from before there was a budget.
const SLOT: u64 = 1;

/// The reservations of this process.
pub(crate) struct SqliteReservations {
    file: Arc<Sqlite>,
    reserved: Arc<Mutex<State>>,
    /// Locked once this process enforces the limits.
    lock: OnceLock<File>,
}

impl SqliteReservations {
    pub(super) fn new(file: Arc<Sqlite>) -> Self {
        Self { file, reserved: Arc::default(), lock: OnceLock::new() }
    }

    pub(super) fn reserve(
        &self,
        reservation: Reservation,
        limits: &CallerLimits,
        clock: &Arc<StoreClock>,
    ) -> Result<Permit, ReserveError> {
        self.keep_limits()?;
        let starts = period_starts(reservation.request.timestamp());
        // Held while the sums are read, so that requests that end meanwhile are either in the sums or still reserved.
        let mut state = self.reserved.lock();
        let spent = self.spent(limits, starts)?;
        state.reserve(limits, &reservation, &spent, clock.now()).map_err(ReserveError::Refused)?;
        Ok(Permit::new(reservation, Keeper::Memory(self.reserved.clone(), clock.clone())))
    }

    /// Locks the limits for this process until it ends.
    fn keep_limits(&self) -> Result<(), StoreError> {
        if self.lock.get().is_some() {
            return Ok(());
        }
        // The canonical path: links to the file must lead to the same lock.
        let path = self.file.pool().path().canonicalize().map_err(StoreError::LimitLock)?;
        let mut name = path.into_os_string();
        name.push(".lock");
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(name);
        let file = file.map_err(StoreError::LimitLock)?;
        match file.try_lock() {
            Ok(()) => drop(self.lock.set(file)),
            // Another thread of this process may have been first.
            Err(TryLockError::WouldBlock) if self.lock.get().is_some() => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::LimitsKeptElsewhere),
            Err(TryLockError::Error(error)) => return Err(StoreError::LimitLock(error)),
        }
        Ok(())
    }

    fn spent(
        &self,
        limits: &CallerLimits,
        starts: [Timestamp; 2],
    ) -> Result<HashMap<Scope, SpentInPeriods>, StoreError> {
        let scopes = || limits.iter().filter(|(_, limits)| !limits.budgets.is_empty()).map(|(scope, _)| scope);
        if scopes().next().is_none() {
            return Ok(HashMap::new());
        }
        self.file.with(|connection| scopes().map(|scope| Ok((scope, sum(connection, scope, starts)?))).collect())
    }
}

/// Two look-ups, because with `OR` all days of a scope would be read.
const SUM: &str = "SELECT 'day', requests, tokens, unmeasured FROM spending
        WHERE scope = ?1 AND period = 'day' AND start = ?2
    UNION ALL
    SELECT 'month', requests, tokens, unmeasured FROM spending
        WHERE scope = ?1 AND period = 'month' AND start = ?3";

fn sum(connection: &Connection, scope: Scope, [day, month]: [Timestamp; 2]) -> Result<SpentInPeriods, StoreError> {
    let mut sum = connection.prepare_cached(SUM)?;
    let mut rows = sum.query(params![scope.to_string(), day.as_millis(), month.as_millis()])?;
    let mut spent = SpentInPeriods::default();
    while let Some(row) = rows.next()? {
        let period = if row.get_ref(0)?.as_str() == Ok("day") { BudgetPeriod::Day } else { BudgetPeriod::Month };
        spent.of_mut(period).add(Spending { requests: row.get(1)?, tokens: row.get(2)?, unmeasured: row.get(3)? });
    }
    Ok(spent)
}

/// The limits, cached by their version, to find the scopes that have budgets.
#[derive(Default)]
pub(crate) struct CountedScopes(Option<LimitTable>);

impl CountedScopes {
    /// Counts recorded rows against budgets. Without budgets, this only reads the version.
    pub(crate) fn count(&mut self, transaction: &Transaction<'_>, rows: &[Entry]) -> Result<(), rusqlite::Error> {
        let version = transaction.prepare_cached(LIMITS_VERSION)?.query_row([], |row| row.get(0))?;
        let limits = match self.0.take().filter(|known| known.version == version) {
            Some(known) => known,
            None => LimitTable::new(version, limits(transaction)?),
        };
        let limits = self.0.insert(limits);
        if !limits.has_budgets() {
            return Ok(());
        }
        let mut sums = SpendingSums::default();
        for row in rows {
            let has_begun = row.timings.inference.is_some();
            let spending = Spending::from_request(row.outcome.status, has_begun, row.usage.total);
            sums.add(row.request_id, row.key, row.owner, spending, |scope| limits.has_budget(*scope));
        }
        let mut add = transaction.prepare_cached(ADD)?;
        for (scope, [day, month], Spending { requests, tokens, unmeasured }) in sums.iter() {
            let (scope, day, month) = (scope.to_string(), day.as_millis(), month.as_millis());
            add.execute(params![scope, day, month, SLOT, requests, tokens, unmeasured])?;
        }
        Ok(())
    }
}

/// Skips kinds of limits that a later version of this program may have added.
fn limits(transaction: &Transaction<'_>) -> Result<Vec<Limit>, rusqlite::Error> {
    let mut list = transaction.prepare_cached("SELECT scope, kind, amount FROM limits")?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get(2)?));
    let limits = list.query_map([], read)?.collect::<Result<Vec<_>, _>>()?;
    let parse = |(scope, kind, amount): (String, String, u64)| {
        Some(Limit { scope: scope.parse().ok()?, kind: kind.parse().ok()?, amount })
    };
    Ok(limits.into_iter().filter_map(parse).collect())
}

/// Adds to the sums of a day and of its month.
const ADD: &str = "INSERT INTO spending (scope, period, start, slot, requests, tokens, unmeasured)
    VALUES (?1, 'day', ?2, ?4, ?5, ?6, ?7), (?1, 'month', ?3, ?4, ?5, ?6, ?7)
    ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, tokens = tokens + excluded.tokens,
        unmeasured = unmeasured + excluded.unmeasured";
