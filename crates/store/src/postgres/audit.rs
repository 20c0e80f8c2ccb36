//! The audit log in PostgreSQL: a line for every change, written in the change's own transaction.

use super::schema::CHANGE_LOCK;
use super::{Postgres, Transaction, count, number, signed, text};
use crate::viewer::Viewer;
use crate::{AuditRecord, StoreError};

impl Postgres {
    /// Begins a change. They are few, and made one after the other, on whichever replica: so a change sees what those before
    /// it did, and the audit log has their order.
    pub(super) async fn change(&self) -> Result<Transaction, StoreError> {
        self.begin(&format!("BEGIN; SELECT pg_advisory_xact_lock({CHANGE_LOCK})")).await
    }

    pub(crate) async fn audit(&self, before: u64, limit: u32) -> Result<Vec<AuditRecord>, StoreError> {
        let list = "SELECT number, at, who, address, what, subject FROM audit WHERE number < $1
            ORDER BY number DESC LIMIT $2";
        let rows =
            self.client().await?.query_typed(list, &[number(&signed(before)), number(&i64::from(limit))]).await?;
        let record = |row: &tokio_postgres::Row| {
            Ok(AuditRecord {
                number: count(row, 0)?,
                at: count(row, 1)?,
                who: row.try_get(2)?,
                address: row.try_get(3)?,
                what: row.try_get(4)?,
                subject: row.try_get(5)?,
            })
        };
        rows.iter().map(record).collect()
    }
}

/// Writes a line of the audit log.
pub(super) async fn audit_by(
    change: &Transaction,
    viewer: &Viewer,
    what: &str,
    subject: &str,
    now: u64,
) -> Result<(), StoreError> {
    audit(change, viewer.name(), viewer.address(), what, subject, now).await
}

/// The same, for somebody who is not signed in yet.
pub(super) async fn audit(
    change: &Transaction,
    who: &str,
    address: &str,
    what: &str,
    subject: &str,
    now: u64,
) -> Result<(), StoreError> {
    let line = "INSERT INTO audit (at, who, address, what, subject) VALUES ($1, $2, $3, $4, $5)";
    change
        .execute_typed(line, &[number(&signed(now)), text(&who), text(&address), text(&what), text(&subject)])
        .await?;
    Ok(())
}
