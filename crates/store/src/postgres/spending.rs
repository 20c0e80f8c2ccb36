//! PostgreSQL's side of budgets. The statement that commits rows adds them to the sums of the scopes that are counted, in
//! a slot of its replica's own: replicas share no row, so none waits for another.

use std::collections::HashMap;
use std::time::Duration;

use chat::Timestamp;
use tokio::time::{Instant, sleep};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::fold::unfolded_sums;
use super::{Postgres, count, number, signed, text};
use crate::StoreError;
use crate::limit_store::UNCOUNTED_SLOT;
use crate::limits::SpentInPeriods;
use crate::rollup::{Figures, Measured};
use crate::scope::Scope;
use crate::spending::{BudgetPeriod, Spending};

/// Slots for replicas. Two that have chosen the same one wait for each other, and count right.
const SLOTS: u64 = 64;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Of a replica, for as long as it runs.
pub(super) fn choose_slot() -> i64 {
    signed(UNCOUNTED_SLOT + 1 + getrandom::u64().unwrap_or(0) % SLOTS)
}

/// Prepared for look-ups. `$1` are scopes, `$2` and `$3` the beginnings of day and month.
pub(super) const SUM_SPENDING: &str =
    "SELECT scope, period, sum(requests)::bigint, sum(tokens)::bigint, sum(unmeasured)::bigint
    FROM spending WHERE scope = ANY($1) AND (period = 'day' AND start = $2 OR period = 'month' AND start = $3)
    GROUP BY scope, period";

/// The rows of `SUM_SPENDING`.
pub(super) fn sums(rows: &[Row]) -> Result<HashMap<Scope, SpentInPeriods>, StoreError> {
    let mut spent: HashMap<Scope, SpentInPeriods> = HashMap::new();
    for row in rows {
        let period: &str = row.try_get(1)?;
        let period = BudgetPeriod::ALL.into_iter().find(|known| known.as_str() == period);
        let of_scope = spent.entry(row.try_get::<_, &str>(0)?.parse()?).or_default();
        *of_scope.of_mut(period.ok_or(StoreError::Corrupt("period"))?) =
            Spending { requests: count(row, 2)?, tokens: count(row, 3)?, unmeasured: count(row, 4)? };
    }
    Ok(spent)
}

impl Postgres {
    /// What scopes have spent, from the sums.
    pub(crate) async fn counted_spending(
        &self,
        scopes: &[Scope],
        now: Timestamp,
    ) -> Result<HashMap<Scope, SpentInPeriods>, StoreError> {
        self.keys.find_spending(scopes, now).await
    }

    /// What a scope has spent, from the ledger.
    pub(crate) async fn recorded_spending(&self, scope: Scope, now: Timestamp) -> Result<SpentInPeriods, StoreError> {
        self.snapshot(async |client| recorded(client, scope, now).await).await
    }

    /// What a scope has spent that commits have not counted.
    pub(crate) async fn uncounted_spending(&self, scope: Scope, now: Timestamp) -> Result<SpentInPeriods, StoreError> {
        let uncounted = self.snapshot(async |client| {
            let counted = SUM_SPENDING.replace("WHERE", "WHERE slot <> 0 AND");
            let names = [scope.to_string()];
            let [day, month] = BudgetPeriod::ALL.map(|period| signed(period.start(now).as_millis()));
            let parameters = [(&names.as_slice() as _, Type::TEXT_ARRAY), number(&day), number(&month)];
            let counted = sums(&client.query_typed(&counted, &parameters).await?)?.remove(&scope).unwrap_or_default();
            Ok(recorded(client, scope, now).await?.without(&counted))
        });
        uncounted.await
    }

    /// Waits until every commit has ended whose snapshot may be older than this call. A statement locks its tables before
    /// it takes its snapshot, so the later ones see what was changed before this call.
    pub(crate) async fn wait_for_running_commits(&self) -> Result<(), StoreError> {
        let running = "SELECT array_agg(virtualtransaction) FROM pg_locks
            WHERE relation = 'unfolded'::regclass AND mode = 'RowExclusiveLock'";
        let mut client = self.client().await?;
        let running: Option<Vec<String>> = client.query_typed(running, &[]).await?[0].try_get(0)?;
        let Some(running) = running else { return Ok(()) };
        let until = Instant::now() + self.server.timeout();
        while Instant::now() < until {
            let left = "SELECT count(*) FROM pg_locks
                WHERE relation = 'unfolded'::regclass AND virtualtransaction = ANY($1)";
            if count(&client.query_typed(left, &[(&running, Type::TEXT_ARRAY)]).await?[0], 0)? == 0 {
                return Ok(());
            }
            sleep(POLL_INTERVAL).await;
        }
        Err(StoreError::TimedOut)
    }
}

/// All in one snapshot.
async fn recorded(client: &Client, scope: Scope, now: Timestamp) -> Result<SpentInPeriods, StoreError> {
    let list = "SELECT start, status::bigint, requests, total_tokens, total_measured FROM rollups
        WHERE party = $1 AND start >= $2";
    let (party, first) = (scope.to_string(), signed(BudgetPeriod::Month.start(now).as_seconds()));
    let mut spent = SpentInPeriods::default();
    for row in &client.query_typed(list, &[text(&party), number(&first)]).await? {
        let total = Measured { sum: count(row, 3)?, count: count(row, 4)? };
        let figures = Figures { requests: count(row, 2)?, total, ..Figures::default() };
        spent.add_rollup(Timestamp::from_seconds(count(row, 0)?), now, count(row, 1)? as u16, &figures);
    }
    spent.add_unfolded(&unfolded_sums(client).await?, scope, now);
    Ok(spent)
}
