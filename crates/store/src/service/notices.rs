//! Outbox of notices to an external receiver: each is sent by one replica, and none is lost if that replica dies.

use std::time::Duration;

use chat::Timestamp;

use crate::database::sql::{Row, params};
use crate::{Notices, StoreError};

/// Notices per claim: they are sent one after the other, and all must be sent before the lease ends.
const MAX_CLAIMED: u64 = 4;
/// How long a notice is remembered after it was created, so that it is not created again.
const REMEMBERED: Duration = Duration::from_secs(62 * 86_400);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub id: String,
    pub body: String,
    /// The number of earlier attempts to send it.
    pub attempts: u64,
}

impl Notices<'_> {
    /// Adds a notice, unless one with this id is remembered.
    pub async fn add(self, id: &str, body: &str) -> Result<(), StoreError> {
        let known = "SELECT EXISTS (SELECT 1 FROM notices WHERE id = $1)";
        if self.connection().await?.query_value(known, params![id]).await? {
            return Ok(());
        }
        self.change_without_viewer(async |transaction| {
            let now = transaction.now();
            let add = "INSERT INTO notices (id, body, created_at, attempts, next_at, is_done)
                VALUES ($1, $2, $3, 0, $3, $4) ON CONFLICT (id) DO NOTHING";
            transaction.execute(add, params![id, body, now, false]).await.map(drop)
        })
        .await
    }

    /// Takes notices that are due. No other caller gets them until the lease ends.
    pub async fn claim(self, lease: Duration) -> Result<Vec<Notice>, StoreError> {
        let any = "SELECT EXISTS (SELECT 1 FROM notices WHERE NOT is_done AND next_at <= $1)";
        if !self.connection().await?.query_value(any, params![self.now()]).await? {
            return Ok(Vec::new());
        }
        self.change_without_viewer(async |transaction| {
            let now = transaction.now();
            let due = "SELECT id, body, attempts FROM notices WHERE NOT is_done AND next_at <= $1
                ORDER BY created_at, id LIMIT $2";
            let notice = |row: &Row<'_>| Ok(Notice { id: row.get(0)?, body: row.get(1)?, attempts: row.get(2)? });
            let claimed = transaction.query(due, params![now, MAX_CLAIMED], notice).await?;
            for Notice { id, .. } in &claimed {
                let claim = "UPDATE notices SET next_at = $2, attempts = attempts + 1 WHERE id = $1";
                transaction.execute(claim, params![id.as_str(), now + lease]).await?;
            }
            Ok(claimed)
        })
        .await
    }

    /// The notice was sent, or will not be retried.
    pub async fn finish(self, id: &str) -> Result<(), StoreError> {
        self.change_without_viewer(async |transaction| {
            transaction.execute("UPDATE notices SET is_done = $2 WHERE id = $1", params![id, true]).await.map(drop)
        })
        .await
    }

    pub async fn retry(self, id: &str, after: Duration) -> Result<(), StoreError> {
        self.change_without_viewer(async |transaction| {
            let next = transaction.now() + after;
            transaction.execute("UPDATE notices SET next_at = $2 WHERE id = $1", params![id, next]).await.map(drop)
        })
        .await
    }
}

/// Deletes notices that need no longer be remembered.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM notices WHERE created_at < $1";

pub(crate) fn oldest_remembered(now: Timestamp) -> Timestamp {
    now.saturating_sub(REMEMBERED)
}
