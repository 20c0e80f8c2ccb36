//! Reads and changes limits, and says which budget of a caller is spent.
//!
//! Every change counts up a version that is read with every key, so a limit holds for the next request on every replica.
//! Nobody has limits unless they are set, and then nothing is read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chat::{KeyId, Timestamp};

use crate::accounts::AccountError;
use crate::audit_action::{AuditAction, AuditSubject};
use crate::id::AccountId;
use crate::limits::{BudgetUse, CallerLimits, Limit, LimitKind, LimitTable, LimitUse, SpentBudget};
use crate::scope::Scope;
use crate::spending::{BudgetPeriod, Spending};
use crate::sql::{Row, Transaction, params};
use crate::viewer::Viewer;
use crate::{Admin, Backend, Store, StoreError};

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

    /// Sets a limit, in place of one of that kind; `false` if there is no such key or person.
    pub async fn set_limit(&self, admin: Admin<'_>, limit: Limit) -> Result<bool, AccountError> {
        let is_set = self
            .change(admin.0, async |transaction| {
                let Some(subject) = subject(transaction, limit.scope).await? else { return Ok(false) };
                let (scope, kind) = (limit.scope.to_string(), limit.kind.as_str());
                let set = "INSERT INTO limits (scope, kind, amount) VALUES ($1, $2, $3)
                    ON CONFLICT (scope, kind) DO UPDATE SET amount = excluded.amount";
                transaction.execute(set, params![&*scope, kind, limit.amount]).await?;
                if matches!(limit.kind, LimitKind::Budget(..)) {
                    let count = "INSERT INTO counted_scopes (scope, is_complete) VALUES ($1, $2)
                        ON CONFLICT (scope) DO NOTHING";
                    transaction.execute(count, params![&*scope, false]).await?;
                }
                let action = AuditAction::Limited { kind: limit.kind, amount: limit.amount };
                note_change(transaction, admin, action, &subject).await?;
                Ok::<_, AccountError>(true)
            })
            .await?;
        if is_set && matches!(limit.kind, LimitKind::Budget(..)) {
            // The limit holds without it, and it is tried again.
            if let Err(error) = self.complete_counts().await {
                tracing::warn!(cause = %error, "a budget is read from the ledger itself for now, which takes longer");
            }
        }
        Ok(is_set)
    }

    /// `false` if there is none.
    pub async fn remove_limit(&self, admin: Admin<'_>, scope: Scope, kind: LimitKind) -> Result<bool, AccountError> {
        self.change(admin.0, async |transaction| {
            let text = scope.to_string();
            let remove = "DELETE FROM limits WHERE scope = $1 AND kind = $2";
            if transaction.execute(remove, params![&*text, kind.as_str()]).await? == 0 {
                return Ok(false);
            }
            let forget = "DELETE FROM counted_scopes WHERE scope = $1 AND NOT EXISTS (
                SELECT 1 FROM limits WHERE limits.scope = $1
                    AND kind NOT IN ('requests-per-minute', 'requests-in-flight'))";
            transaction.execute(forget, params![&*text]).await?;
            let subject = subject(transaction, scope).await?.unwrap_or(AuditSubject::person_named(&text));
            note_change(transaction, admin, AuditAction::RemovedLimit { kind }, &subject).await?;
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
            self.change_without_viewer(async |transaction| {
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
    action: AuditAction,
    subject: &AuditSubject,
) -> Result<(), StoreError> {
    transaction.execute(COUNT_UP, &[]).await?;
    transaction.audit(admin.0, action, subject).await
}

/// Whose limit it is; `None` if there is no such key or person.
async fn subject(transaction: &mut Transaction<'_>, scope: Scope) -> Result<Option<AuditSubject>, StoreError> {
    match scope {
        Scope::Everyone => Ok(Some(AuditSubject::everyone())),
        Scope::Owner(account) => {
            let find = "SELECT email FROM accounts WHERE id = $1";
            let found = transaction.query_optional(find, params![&account], |row| row.get::<String>(0)).await?;
            Ok(found.map(|email| AuditSubject::person_with(account, &email)))
        }
        Scope::Key(key) => {
            let find = "SELECT name FROM keys WHERE id = $1 AND NOT playground";
            let found = transaction.query_optional(find, params![&key], |row| row.get::<String>(0)).await?;
            Ok(found.map(|name| AuditSubject::key(key, &name)))
        }
    }
}
