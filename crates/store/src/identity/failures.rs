//! Failed sign-ins, counted by account and network over all replicas. Counts decay.

use std::time::Duration;

use chat::Timestamp;

use crate::database::sql::{Row, Transaction, params};
use crate::{SignIns, StoreError};

/// A count halves in this time.
const HALF_LIFE: Duration = Duration::from_secs(300);
/// After this time a count is deleted: 1 of 1,000 failures would be left.
const MEMORY: Duration = HALF_LIFE.saturating_mul(10);
const MILLI_PER_FAILURE: f64 = 1000.0;

impl SignIns<'_> {
    /// The largest count of any of the subjects.
    pub async fn failures(self, subjects: &[&str]) -> Result<f64, StoreError> {
        let (mut connection, now) = (self.connection().await?, self.now());
        let mut most: f64 = 0.0;
        for subject in subjects {
            let failures = connection.query_optional(FIND, params![*subject], |row| read(row, now)).await?;
            most = most.max(failures.unwrap_or(0.0));
        }
        Ok(most)
    }

    /// Adds a failure to each subject.
    pub async fn add_failure(self, subjects: &[&str]) -> Result<(), StoreError> {
        self.change_without_viewer(async |transaction| {
            for subject in subjects {
                add_failure(transaction, subject, 1.0).await?;
            }
            Ok(())
        })
        .await
    }

    /// Removes the failures of `part`, and subtracts them from `whole`.
    pub async fn forget_failures(self, part: &str, whole: &str) -> Result<(), StoreError> {
        self.change_without_viewer(async |transaction| {
            let forgotten = failures(transaction, part).await?;
            if forgotten > 0.0 {
                add_failure(transaction, whole, -forgotten).await?;
                transaction.execute("DELETE FROM sign_in_failures WHERE subject = $1", params![part]).await?;
            }
            Ok(())
        })
        .await
    }
}

pub(crate) async fn failures(transaction: &mut Transaction<'_>, subject: &str) -> Result<f64, StoreError> {
    let now = transaction.now();
    let found = transaction.query_optional(FIND, params![subject], |row| read(row, now)).await?;
    Ok(found.unwrap_or(0.0))
}

/// A negative `count` subtracts failures.
pub(crate) async fn add_failure(
    transaction: &mut Transaction<'_>,
    subject: &str,
    count: f64,
) -> Result<(), StoreError> {
    let thousandths = ((failures(transaction, subject).await? + count).max(0.0) * MILLI_PER_FAILURE) as u64;
    let set = "INSERT INTO sign_in_failures (subject, thousandths, at) VALUES ($1, $2, $3)
        ON CONFLICT (subject) DO UPDATE SET thousandths = excluded.thousandths, at = excluded.at";
    let now = transaction.now();
    transaction.execute(set, params![subject, thousandths, now]).await?;
    Ok(())
}

const FIND: &str = "SELECT thousandths, at FROM sign_in_failures WHERE subject = $1";

fn read(row: &Row<'_>, now: Timestamp) -> Result<f64, StoreError> {
    let (thousandths, at): (u64, Timestamp) = (row.get(0)?, row.get(1)?);
    Ok(decayed(
        thousandths as f64 / MILLI_PER_FAILURE,
        Duration::from_millis(now.as_millis().saturating_sub(at.as_millis())),
    ))
}

fn decayed(failures: f64, age: Duration) -> f64 {
    failures * 0.5_f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64())
}

/// Counts last changed before `$1`. The ledger runs this, with a time that two clocks confirm.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM sign_in_failures WHERE at < $1";

pub(crate) fn oldest_remembered(now: Timestamp) -> Timestamp {
    now.saturating_sub(MEMORY)
}
