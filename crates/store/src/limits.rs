//! Limits of a key, a person or everyone, as they are set; `spending` is what budgets are compared with.
//!
//! Every change counts up a version that is read with every key, so a limit holds for the next request on every replica.
//! Nobody has limits unless they are set, and then nothing is read.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chat::{KeyId, Timestamp};

use crate::accounts::{AccountError, require_still_admin};
use crate::id::AccountId;
use crate::quota::QuotaLimits;
use crate::rollup::{Figures, Rollups};
use crate::scope::Scope;
use crate::spending::{BudgetPeriod, Spending};
use crate::sql::{Row, Transaction, params};
use crate::viewer::Viewer;
use crate::{Admin, Backend, Store, StoreError};

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

impl Limit {
    fn budget(&self) -> Option<Budget> {
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
    fn new(budget: Budget, spent: Option<&SpentInPeriods>, now: Timestamp) -> Self {
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
    is_counted: bool,
}

impl ScopeLimits {
    /// Those that are not budgets, if there are any.
    pub(crate) fn quota(&self) -> Option<QuotaLimits> {
        let limits = QuotaLimits { per_minute: self.per_minute, in_flight: self.in_flight };
        (self.per_minute.is_some() || self.in_flight.is_some()).then_some(limits)
    }

    fn spent_budget(&self, spent: &SpentInPeriods, now: Timestamp) -> Option<SpentBudget> {
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

    fn with_budgets(&self) -> impl Iterator<Item = &Arc<ScopeLimits>> {
        self.iter().filter(|limits| !limits.budgets.is_empty())
    }
}

/// All limits there are.
#[derive(Debug, Default)]
pub(crate) struct LimitTable {
    version: u64,
    by_scope: HashMap<Scope, Arc<ScopeLimits>>,
}

impl LimitTable {
    fn new(version: u64, limits: impl IntoIterator<Item = (Limit, bool)>) -> Self {
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

    fn of(&self, key: KeyId, owner: Option<AccountId>) -> CallerLimits {
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

impl Store {
    /// The limits of a caller, of the version that the database had when the key was looked up or of a later one.
    pub(crate) async fn limits_of(
        &self,
        key: KeyId,
        owner: Option<AccountId>,
        version: u64,
    ) -> Result<CallerLimits, StoreError> {
        let known = self.limits.read().clone();
        if known.version >= version {
            return Ok(known.of(key, owner));
        }
        let _once = self.loading_limits.lock().await;
        let known = self.limits.read().clone();
        if known.version >= version {
            return Ok(known.of(key, owner));
        }
        let loaded = Arc::new(self.load_limits().await?);
        *self.limits.write() = loaded.clone();
        Ok(loaded.of(key, owner))
    }

    async fn load_limits(&self) -> Result<LimitTable, StoreError> {
        let mut connection = self.connection().await?;
        // The version first: what changes in between is then loaded again.
        let version = connection.query_value(LIMITS_VERSION, &[]).await?;
        let limits = connection.query(&select_limits(""), &[], limit).await?;
        Ok(LimitTable::new(version, limits))
    }

    pub(crate) async fn limits_version(&self) -> Result<u64, StoreError> {
        self.connection().await?.query_value(LIMITS_VERSION, &[]).await
    }

    /// The first budget of a caller of which nothing is left.
    pub async fn spent_budget(&self, limits: &CallerLimits) -> Result<Option<SpentBudget>, StoreError> {
        if limits.with_budgets().next().is_none() {
            return Ok(None);
        }
        let now = self.now();
        let counted: Vec<Scope> =
            limits.with_budgets().filter(|limits| limits.is_counted).map(|limits| limits.scope).collect();
        let spent = if counted.is_empty() { HashMap::new() } else { dispatch!(self, counted_spending(&counted, now))? };
        for limits in limits.with_budgets() {
            let spent = match limits.is_counted {
                true => spent.get(&limits.scope).copied().unwrap_or_default(),
                false => dispatch!(self, recorded_spending(limits.scope, now))?,
            };
            if let Some(spent) = limits.spent_budget(&spent, now) {
                return Ok(Some(spent));
            }
        }
        Ok(None)
    }

    /// Sets a limit, in place of one of that kind; `false` if there is no such key or person, or it is not theirs to set.
    pub async fn set_limit(&self, admin: Admin<'_>, limit: Limit) -> Result<bool, AccountError> {
        let is_set = self
            .change(async |transaction| {
                require_still_admin(transaction, admin).await?;
                let Some(label) = label(transaction, limit.scope).await? else { return Ok(false) };
                let (scope, kind) = (limit.scope.to_string(), limit.kind.as_str());
                let set = "INSERT INTO limits (scope, kind, amount) VALUES ($1, $2, $3)
                    ON CONFLICT (scope, kind) DO UPDATE SET amount = excluded.amount";
                transaction.execute(set, params![&*scope, kind, limit.amount]).await?;
                if matches!(limit.kind, LimitKind::Budget(..)) {
                    let count = "INSERT INTO counted_scopes (scope, is_complete) VALUES ($1, $2)
                        ON CONFLICT (scope) DO NOTHING";
                    transaction.execute(count, params![&*scope, false]).await?;
                }
                let what = format!("limited {} to {}", limit.kind.describe(), limit.amount);
                note_change(transaction, admin, &what, &label).await?;
                Ok::<_, AccountError>(true)
            })
            .await?;
        if is_set && matches!(limit.kind, LimitKind::Budget(..)) {
            self.complete_counts().await?;
        }
        Ok(is_set)
    }

    /// `false` if there is none.
    pub async fn remove_limit(&self, admin: Admin<'_>, scope: Scope, kind: LimitKind) -> Result<bool, AccountError> {
        self.change(async |transaction| {
            require_still_admin(transaction, admin).await?;
            let text = scope.to_string();
            let remove = "DELETE FROM limits WHERE scope = $1 AND kind = $2";
            if transaction.execute(remove, params![&*text, kind.as_str()]).await? == 0 {
                return Ok(false);
            }
            let forget = "DELETE FROM counted_scopes WHERE scope = $1 AND NOT EXISTS (
                SELECT 1 FROM limits WHERE limits.scope = $1
                    AND kind NOT IN ('requests-per-minute', 'requests-in-flight'))";
            transaction.execute(forget, params![&*text]).await?;
            let label = label(transaction, scope).await?.unwrap_or(text);
            note_change(transaction, admin, &format!("removed the limit of {}", kind.describe()), &label).await?;
            Ok(true)
        })
        .await
    }

    /// The limits that a viewer may see, with what is used of them: all, or those of a person and of that person's keys,
    /// and everyone's.
    pub async fn list_limits(&self, viewer: &Viewer) -> Result<Vec<LimitUse>, StoreError> {
        let visible = "WHERE $1 IS NULL OR limits.scope = '' OR limits.scope = '@' || $1
            OR limits.scope IN (SELECT id FROM keys WHERE owner = $1)";
        let limits = self.connection().await?.query(&select_limits(visible), params![viewer.scope()], limit).await?;
        self.with_use(limits).await
    }

    /// The limits of one scope. Whoever asks must be allowed to see it.
    pub(crate) async fn limits_of_scope(&self, scope: Scope) -> Result<Vec<LimitUse>, StoreError> {
        let scope = scope.to_string();
        let select = select_limits("WHERE limits.scope = $1");
        let limits = self.connection().await?.query(&select, params![&*scope], limit).await?;
        self.with_use(limits).await
    }

    /// The limits of a key that the viewer may see.
    pub async fn limits_of_key(&self, viewer: &Viewer, key: KeyId) -> Result<Vec<LimitUse>, StoreError> {
        match self.key(viewer, key).await? {
            Some(_) => self.limits_of_scope(Scope::Key(key)).await,
            None => Ok(Vec::new()),
        }
    }

    async fn with_use(&self, limits: Vec<(Limit, bool)>) -> Result<Vec<LimitUse>, StoreError> {
        let now = self.now();
        let is_budget = |limit: &Limit| matches!(limit.kind, LimitKind::Budget(..));
        let budgets = || limits.iter().filter(|(limit, _)| is_budget(limit));
        let counted: Vec<Scope> =
            budgets().filter(|(_, is_counted)| *is_counted).map(|(limit, _)| limit.scope).collect();
        let mut spent =
            if counted.is_empty() { HashMap::new() } else { dispatch!(self, counted_spending(&counted, now))? };
        for (limit, _) in budgets().filter(|(_, is_counted)| !is_counted) {
            spent.insert(limit.scope, dispatch!(self, recorded_spending(limit.scope, now))?);
        }
        let with_use = |(limit, _): (Limit, bool)| LimitUse {
            limit,
            budget: limit.budget().map(|budget| BudgetUse::new(budget, spent.get(&limit.scope), now)),
        };
        Ok(limits.into_iter().map(with_use).collect())
    }

    /// Sums up what was spent before scopes were counted, so that what commits count from now on is added to that.
    /// Until then the ledger itself is summed up for every request.
    pub async fn complete_counts(&self) -> Result<(), StoreError> {
        let incomplete = "SELECT scope FROM counted_scopes WHERE NOT is_complete";
        let scope = |row: &Row<'_>| row.get::<String>(0)?.parse::<Scope>();
        let scopes = self.connection().await?.query(incomplete, &[], scope).await?;
        if scopes.is_empty() {
            return Ok(());
        }
        // From now on every commit counts them.
        dispatch!(self, wait_for_running_commits())?;
        for scope in scopes {
            let now = self.now();
            let uncounted = dispatch!(self, uncounted_spending(scope, now))?;
            self.change(async |transaction| {
                let scope = scope.to_string();
                for period in BudgetPeriod::ALL {
                    let Spending { requests, tokens, unmeasured } = *uncounted.of(period);
                    let start = period.start(now);
                    let set = "INSERT INTO spending (scope, period, start, slot, requests, tokens, unmeasured)
                        VALUES ($1, $2, $3, $4, $5, $6, $7)
                        ON CONFLICT (scope, period, start, slot) DO UPDATE SET requests = excluded.requests,
                            tokens = excluded.tokens, unmeasured = excluded.unmeasured";
                    let parameters =
                        params![&*scope, period.as_str(), start, UNCOUNTED_SLOT, requests, tokens, unmeasured];
                    transaction.execute(set, parameters).await?;
                }
                let complete = "UPDATE counted_scopes SET is_complete = $2 WHERE scope = $1";
                transaction.execute(complete, params![&*scope, true]).await?;
                transaction.execute(COUNT_UP, &[]).await.map(drop)
            })
            .await?;
        }
        Ok(())
    }
}

/// In the table `spending`: what was spent before a scope was counted. Replicas add to slots above.
pub(crate) const UNCOUNTED_SLOT: u64 = 0;

pub(crate) const LIMITS_VERSION: &str = "SELECT version FROM limits_version";
pub(crate) const COUNT_UP: &str = "UPDATE limits_version SET version = version + 1";

/// Sums of periods that are over.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM spending WHERE start < $1";

/// The month before this one is kept, in case a clock was wrong.
pub(crate) fn oldest_kept(now: Timestamp) -> Timestamp {
    BudgetPeriod::Month.start(BudgetPeriod::Month.start(now).saturating_sub(Duration::from_secs(1)))
}

fn select_limits(condition: &str) -> String {
    format!(
        "SELECT limits.scope, kind, amount, is_complete FROM limits
         LEFT JOIN counted_scopes ON counted_scopes.scope = limits.scope {condition} ORDER BY limits.scope, kind"
    )
}

/// A limit, and whether all that its scope has spent is counted.
fn limit(row: &Row<'_>) -> Result<(Limit, bool), StoreError> {
    let kind = row.get::<String>(1)?.parse().map_err(|_| StoreError::Corrupt("limit"))?;
    let limit = Limit { scope: row.get::<String>(0)?.parse()?, kind, amount: row.get(2)? };
    Ok((limit, row.get_optional(3)?.unwrap_or(false)))
}

async fn note_change(
    transaction: &mut Transaction<'_>,
    admin: Admin<'_>,
    what: &str,
    label: &str,
) -> Result<(), StoreError> {
    transaction.execute(COUNT_UP, &[]).await?;
    transaction.audit(admin.0, what, label).await
}

/// How the audit log names whose limit it is; `None` if there is no such key or person.
async fn label(transaction: &mut Transaction<'_>, scope: Scope) -> Result<Option<String>, StoreError> {
    let name = |row: &Row<'_>| row.get::<String>(0);
    match scope {
        Scope::Everyone => Ok(Some("everyone".into())),
        Scope::Owner(account) => {
            transaction.query_optional("SELECT email FROM accounts WHERE id = $1", params![&account], name).await
        }
        Scope::Key(key) => {
            let find = "SELECT name FROM keys WHERE id = $1 AND NOT playground";
            let found = transaction.query_optional(find, params![&key], name).await?;
            Ok(found.map(|name| format!("{name} ({key})")))
        }
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
    fn every_kind_is_read_as_it_is_written() {
        for kind in LimitKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!("tokens".parse::<LimitKind>(), Err(LimitKindError));
    }
}
