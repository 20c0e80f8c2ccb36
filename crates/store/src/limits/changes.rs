//! Reads and changes limits.
//!
//! Every change gives the limits a new version, which is read with every key: a limit applies to the next request on
//! every replica. The transaction that adds a scope's first budget sums up what the scope has spent, while no row can be
//! committed; every later commit adds to the sum.

use std::time::Duration;

use chat::{KeyId, Timestamp};

use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::snapshot::Snapshot;
use crate::database::sql::{Connection, Row, Transaction, params};
use crate::identity::accounts::AccountError;
use crate::limits::budget::{BudgetUse, LimitUse};
use crate::limits::spending::{RecordedSpending, ScopeRange, Spending};
use crate::usage::rollup::{Figures, Measured};
use crate::usage::unfolded::unfolded_sums;
use crate::values::{Admin, BudgetPeriod, Limit, LimitKind, Scope, Viewer};
use crate::{Limits, StoreError};

impl Limits<'_> {
    /// Sets or replaces a limit; `false` if there is no such key or person.
    pub async fn set(self, admin: Admin<'_>, limit: Limit) -> Result<bool, AccountError> {
        self.change(admin.0, async |transaction| {
            let Some(subject) = subject(transaction, limit.scope).await? else { return Ok(false) };
            if limit.budget().is_some() && !has_budget(transaction, limit.scope).await? {
                count_recorded(transaction, limit.scope).await?;
            }
            let set = "INSERT INTO limits (scope, kind, amount) VALUES ($1, $2, $3)
                ON CONFLICT (scope, kind) DO UPDATE SET amount = excluded.amount";
            let (scope, kind) = (limit.scope.to_string(), limit.kind.as_str());
            transaction.execute(set, params![&*scope, kind, limit.amount]).await?;
            let action = AuditAction::Limited { kind: limit.kind, amount: limit.amount };
            note_change(transaction, admin, action, &subject).await?;
            Ok(true)
        })
        .await
    }

    /// `false` if there is none.
    pub async fn remove(self, admin: Admin<'_>, scope: Scope, kind: LimitKind) -> Result<bool, AccountError> {
        self.change(admin.0, async |transaction| {
            let text = scope.to_string();
            let remove = "DELETE FROM limits WHERE scope = $1 AND kind = $2";
            if transaction.execute(remove, params![&*text, kind.as_str()]).await? == 0 {
                return Ok(false);
            }
            let subject = subject(transaction, scope).await?.unwrap_or(AuditSubject::person_named(&text));
            note_change(transaction, admin, AuditAction::RemovedLimit { kind }, &subject).await?;
            Ok(true)
        })
        .await
    }

    /// The limits that a viewer may see, with their use. An administrator sees all. Others see their own, those of their
    /// keys, and those of each person and of everyone.
    pub async fn list(self, viewer: &Viewer) -> Result<Vec<LimitUse>, StoreError> {
        let visible = "$1 IS NULL OR limits.scope IN ('', '@') OR limits.scope = '@' || $1
            OR limits.scope IN (SELECT id FROM keys WHERE owner = $1)";
        self.list_where(viewer, visible).await
    }

    /// The limits of a key that the viewer may see.
    pub async fn of_key(self, viewer: &Viewer, key: KeyId) -> Result<Vec<LimitUse>, StoreError> {
        match self.0.keys().find(viewer, key).await? {
            Some(_) => self.list_where(viewer, &format!("limits.scope = '{key}'")).await,
            None => Ok(Vec::new()),
        }
    }

    async fn list_where(self, viewer: &Viewer, condition: &str) -> Result<Vec<LimitUse>, StoreError> {
        let now = self.now();
        let [day, month] = BudgetPeriod::ALL.map(|period| period.start(now));
        let select = format!(
            "SELECT limits.scope, kind, amount, CAST(coalesce(sum(requests), 0) AS bigint),
                CAST(coalesce(sum(tokens), 0) AS bigint), CAST(coalesce(sum(unmeasured), 0) AS bigint),
                coalesce(email, keys.name)
             FROM limits
             LEFT JOIN keys ON keys.id = limits.scope
             LEFT JOIN accounts ON limits.scope = '@' || accounts.id AND deleted_at IS NULL
             LEFT JOIN spending
                ON spending.scope = CASE limits.scope WHEN '@' THEN '@' || $1 ELSE limits.scope END
                AND period = CASE WHEN kind LIKE '%-day' THEN 'day' ELSE 'month' END
                AND start = CASE WHEN kind LIKE '%-day' THEN $2 ELSE $3 END
             WHERE {condition} GROUP BY limits.scope, kind, amount, email, keys.name ORDER BY limits.scope, kind"
        );
        let read = |row: &Row<'_>| {
            let limit = limit(row)?;
            let spent = Spending { requests: row.get(3)?, tokens: row.get(4)?, unmeasured: row.get(5)? };
            let covers_many = limit.scope == Scope::EachPerson && viewer.scope().is_none();
            let budget = limit.budget().filter(|_| !covers_many).map(|budget| BudgetUse::new(budget, spent, now));
            Ok(LimitUse { limit, name: row.get_optional(6)?, budget })
        };
        self.connection().await?.query(&select, params![viewer.scope(), day, month], read).await
    }
}

pub(crate) const LIMITS_VERSION: &str = "SELECT version FROM limits_version";

/// Sums of periods that are over.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM spending WHERE start < $1";

/// The start of the previous month, which is kept in case a clock was wrong.
pub(crate) fn oldest_kept(now: Timestamp) -> Timestamp {
    BudgetPeriod::Month.start(BudgetPeriod::Month.start(now).saturating_sub(Duration::from_secs(1)))
}

/// Gives the limits a new version. It is random, so that no version recurs after a failover has lost some.
pub(crate) async fn count_up(transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
    let version = getrandom::u64()? >> 1;
    transaction.execute("UPDATE limits_version SET version = $1", params![version]).await.map(drop)
}

pub(super) fn limit(row: &Row<'_>) -> Result<Limit, StoreError> {
    let kind = row.get::<String>(1)?.parse().map_err(|_| StoreError::Corrupt("limit"))?;
    Ok(Limit { scope: row.get::<String>(0)?.parse()?, kind, amount: row.get(2)? })
}

/// Whether commits already count the spending of a scope.
async fn has_budget(transaction: &mut Transaction<'_>, scope: Scope) -> Result<bool, StoreError> {
    let find = "SELECT EXISTS (SELECT 1 FROM limits WHERE scope = $1
        AND kind NOT IN ('requests-per-minute', 'requests-in-flight'))";
    transaction.query_value(find, params![&*scope.to_string()]).await
}

/// Sums up the spending of the current day and month. No row is committed until the transaction ends, and every later
/// commit adds to the sums.
async fn count_recorded(transaction: &mut Transaction<'_>, scope: Scope) -> Result<(), StoreError> {
    let (now, range) = (transaction.now(), ScopeRange::limited_by(scope));
    let mut recorded = RecordedSpending::at(now);
    if let Connection::Postgres(client) = &mut **transaction {
        // Commits write to `unfolded`, and folding deletes from it: both wait, but not for long.
        client.execute("SET LOCAL lock_timeout = '2s'", &[]).await?;
        client.execute("LOCK TABLE unfolded IN SHARE ROW EXCLUSIVE MODE", &[]).await?;
    }
    let read = async |snapshot: &mut Snapshot<'_>| {
        let list = "SELECT party, start, status, requests, total_tokens, total_measured, latencies FROM rollups
            WHERE party >= $1 AND party <= $2 AND start >= $3";
        let parameters = params![&*range.first, &*range.last, recorded.first_second()];
        let add = |row: &Row<'_>| {
            let scope = row.get::<String>(0)?.parse()?;
            let total = Measured { sum: row.get(4)?, count: row.get(5)? };
            let figures = Figures { requests: row.get(3)?, total, ..Figures::default() };
            recorded.add(scope, row.get(1)?, row.get(2)?, &figures, &row.get(6)?);
            Ok(())
        };
        snapshot.each(list, parameters, add).await?;
        recorded.add_unfolded(&unfolded_sums(snapshot).await?, &range);
        Ok(())
    };
    transaction.read(4, read).await?;
    let [day, month] = BudgetPeriod::ALL.map(|period| period.start(now));
    // Sums of the previous day stay, for requests that arrived on that day.
    let forget = "DELETE FROM spending WHERE scope >= $1 AND scope <= $2 AND start IN ($3, $4)";
    transaction.execute(forget, params![&*range.first, &*range.last, day, month]).await?;
    for (scope, spent) in &recorded.by_scope {
        for period in BudgetPeriod::ALL {
            let Spending { requests, tokens, unmeasured } = *spent.in_period(period);
            let set = "INSERT INTO spending (scope, period, start, slot, requests, tokens, unmeasured)
                VALUES ($1, $2, $3, 0, $4, $5, $6)";
            let (scope, start) = (scope.to_string(), period.start(now));
            let parameters = params![&*scope, period.as_str(), start, requests, tokens, unmeasured];
            transaction.execute(set, parameters).await?;
        }
    }
    Ok(())
}

async fn note_change(
    transaction: &mut Transaction<'_>,
    admin: Admin<'_>,
    action: AuditAction,
    subject: &AuditSubject,
) -> Result<(), StoreError> {
    count_up(transaction).await?;
    transaction.audit(admin.0, action, subject).await
}

/// The subject of a limit; `None` if there is no such key or person.
async fn subject(transaction: &mut Transaction<'_>, scope: Scope) -> Result<Option<AuditSubject>, StoreError> {
    match scope {
        Scope::Everyone => Ok(Some(AuditSubject::everyone())),
        Scope::EachPerson => Ok(Some(AuditSubject::each_person())),
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
