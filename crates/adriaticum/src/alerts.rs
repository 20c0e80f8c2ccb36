//! Notifications to a webhook: 80 and 100 % of a budget used, a week before a key expires, and a test on request. Each is
//! sent by one replica, and retried for a day.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use format::rfc3339_seconds;
use ops::AlertCounters;
use serde_json::{Value, json};
use store::{BudgetUse, Limit, LimitUse, Notice, Scope, Store, StoreError, Viewer};
use tokio::time::{MissedTickBehavior, interval};

use crate::webhook::Webhook;

const INTERVAL: Duration = Duration::from_secs(2);
/// Keys that expire are looked for less often than budgets.
const CHECKS_PER_KEY_CHECK: u64 = 300;
/// Of a budget, in percent.
const THRESHOLDS: [u64; 2] = [80, 100];
/// Longer than a delivery may take.
const LEASE: Duration = Duration::from_secs(60);
/// The wait after each failed delivery. The notification is dropped after the last one.
const BACKOFF_SECONDS: [u64; 8] = [5, 15, 60, 300, 1_800, 7_200, 21_600, 43_200];

pub(crate) struct Alerts {
    store: Arc<Store>,
    webhook: Option<Webhook>,
    counters: Arc<AlertCounters>,
    /// Ids of notifications that were added, by any replica.
    added: HashSet<String>,
}

impl Alerts {
    pub(crate) fn new(store: Arc<Store>, webhook: Option<Webhook>, counters: Arc<AlertCounters>) -> Self {
        Self { store, webhook, counters, added: HashSet::new() }
    }

    /// Checks and delivers forever.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for check in 0_u64.. {
            ticks.tick().await;
            if let Err(error) = self.check(check.is_multiple_of(CHECKS_PER_KEY_CHECK)).await {
                tracing::debug!(cause = %error, "budgets could not be checked");
            }
        }
    }

    async fn check(&mut self, keys_too: bool) -> Result<(), StoreError> {
        let limits = self.store.limits().list(&Viewer::operator()).await?;
        let reached = |percent| limits.iter().filter(|limit| has_reached(limit, percent)).count();
        for (position, percent) in THRESHOLDS.into_iter().enumerate() {
            self.counters.budgets.set(position, reached(percent) as u64);
        }
        if self.webhook.is_none() {
            return Ok(());
        }
        for percent in THRESHOLDS {
            for used @ LimitUse { limit, budget, .. } in limits.iter().filter(|limit| has_reached(limit, percent)) {
                let Some(budget) = budget else { continue };
                let id = budget_notice_id(limit, budget, percent);
                if !self.added.contains(&id) {
                    self.add(id, "budget.reached", &budget_data(used, budget, percent)).await?;
                }
            }
        }
        if keys_too {
            for key in self.store.keys().expiring().await? {
                let Some(expires_at) = key.expires_at else { continue };
                let id = format!("key-expires/{}/{}", key.id, expires_at.as_seconds());
                let data = json!({
                    "id": key.id.as_str(),
                    "name": key.name,
                    "owner": key.owner,
                    "expires_at": rfc3339_seconds(expires_at),
                });
                self.add(id, "key.expires", &data).await?;
            }
        }
        for notice in self.store.notices().claim(LEASE).await? {
            self.deliver(&notice).await?;
        }
        Ok(())
    }

    async fn add(&mut self, id: String, kind: &str, data: &Value) -> Result<(), StoreError> {
        let event = json!({ "type": kind, "timestamp": rfc3339_seconds(self.store.now()), "data": data });
        self.store.notices().add(&id, &event.to_string()).await?;
        self.added.insert(id);
        Ok(())
    }

    async fn deliver(&self, notice: &Notice) -> Result<(), StoreError> {
        let Some(webhook) = &self.webhook else { return Ok(()) };
        let sent = webhook.send(&notice.id, &notice.body, self.store.now()).await;
        self.counters.deliveries.add(usize::from(sent.is_err()));
        let Err(cause) = sent else { return self.store.notices().finish(&notice.id).await };
        match BACKOFF_SECONDS.get(usize::try_from(notice.attempts).unwrap_or(usize::MAX)) {
            Some(&seconds) => {
                tracing::warn!(
                    notification = notice.id,
                    cause,
                    "the webhook did not accept a notification; it will be retried"
                );
                self.store.notices().retry(&notice.id, Duration::from_secs(seconds)).await
            }
            None => {
                tracing::error!(
                    notification = notice.id,
                    cause,
                    "the webhook did not accept a notification, which is dropped"
                );
                self.store.notices().finish(&notice.id).await
            }
        }
    }
}

fn budget_data(LimitUse { limit, name, .. }: &LimitUse, budget: &BudgetUse, percent: u64) -> Value {
    let (scope, id) = names(limit.scope);
    json!({
        "percent": percent,
        "scope": scope,
        "id": id,
        "name": name,
        "limit": limit.kind.as_str(),
        "amount": limit.amount,
        "used": budget.used,
        "renews_at": rfc3339_seconds(budget.renews_at),
    })
}

fn has_reached(limit: &LimitUse, percent: u64) -> bool {
    let amount = u128::from(limit.limit.amount);
    limit.budget.is_some_and(|budget| u128::from(budget.used) * 100 >= amount * u128::from(percent))
}

/// Once in a period, and again if the amount is changed.
fn budget_notice_id(limit: &Limit, budget: &BudgetUse, percent: u64) -> String {
    let (scope, id) = names(limit.scope);
    let (kind, amount, renews_at) = (limit.kind, limit.amount, budget.renews_at.as_seconds());
    format!("budget/{scope}/{}/{kind}/{renews_at}/{amount}/{percent}", id.unwrap_or_default())
}

/// The name of a scope, and its public id.
fn names(scope: Scope) -> (&'static str, Option<String>) {
    match scope {
        Scope::Everyone => ("everyone", None),
        Scope::EachPerson => ("each-person", None),
        Scope::Owner(account) => ("person", Some(account.to_string())),
        Scope::Key(key) => ("key", Some(key.to_string())),
    }
}
