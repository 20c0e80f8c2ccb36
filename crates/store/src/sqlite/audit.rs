//! The audit log in SQLite: a line for every change, written in the change's own transaction.

use rusqlite::{Transaction, TransactionBehavior, params};

use super::Sqlite;
use crate::viewer::Viewer;
use crate::{AuditRecord, StoreError};

impl Sqlite {
    /// Makes a change together with its line of the audit log, or neither.
    pub(super) fn change<T, E: From<StoreError>>(
        &self,
        make: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.with(|connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // A change that is declined is rolled back, and the connection is as good as before.
            match make(&transaction) {
                Ok(made) => {
                    transaction.commit()?;
                    Ok(Ok(made))
                }
                Err(declined) => Ok(Err(declined)),
            }
        })?
    }

    pub(crate) fn audit(&self, before: u64, limit: u32) -> Result<Vec<AuditRecord>, StoreError> {
        self.with(|connection| {
            let mut list = connection.prepare(
                "SELECT number, at, who, address, what, subject FROM audit WHERE number < ?1 ORDER BY number DESC LIMIT ?2",
            )?;
            let rows = list.query_map(params![before.min(i64::MAX as u64), limit], |row| {
                Ok(AuditRecord {
                    number: row.get(0)?,
                    at: row.get(1)?,
                    who: row.get(2)?,
                    address: row.get(3)?,
                    what: row.get(4)?,
                    subject: row.get(5)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Writes a line of the audit log.
pub(super) fn audit_by(
    transaction: &Transaction<'_>,
    viewer: &Viewer,
    what: &str,
    subject: &str,
    now: u64,
) -> Result<(), StoreError> {
    audit(transaction, viewer.name(), viewer.address(), what, subject, now)
}

/// The same, for somebody who is not signed in yet.
pub(super) fn audit(
    transaction: &Transaction<'_>,
    who: &str,
    address: &str,
    what: &str,
    subject: &str,
    now: u64,
) -> Result<(), StoreError> {
    transaction.execute(
        "INSERT INTO audit (at, who, address, what, subject) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![now, who, address, what, subject],
    )?;
    Ok(())
}
