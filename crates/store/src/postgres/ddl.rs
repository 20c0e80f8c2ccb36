//! Changes of tables beside replicas that serve. A statement that waits for a lock makes all later ones wait behind it. So
//! it waits for a fraction of a second only, the log says who has the table in use, and the caller tries again later.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, Transaction};

use super::number;
use crate::StoreError;

const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

pub(super) enum Changed<T> {
    Done(T),
    /// The change itself decided that it is not to be made.
    Declined,
    /// A table is in use.
    InUse,
}

/// Makes a change in one transaction. It is rolled back if it returns `None`.
pub(super) async fn change_tables<T>(
    client: &mut Client,
    what: &'static str,
    change: impl AsyncFnOnce(&Transaction<'_>) -> Result<Option<T>, StoreError>,
) -> Result<Changed<T>, StoreError> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(&format!("SET LOCAL lock_timeout = {}", LOCK_TIMEOUT.as_millis())).await?;
    match change(&transaction).await {
        Ok(Some(done)) => {
            transaction.commit().await?;
            Ok(Changed::Done(done))
        }
        Ok(None) => {
            transaction.rollback().await?;
            Ok(Changed::Declined)
        }
        Err(error) if error.sql_state() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            transaction.rollback().await?;
            let in_use_by = lock_holders(client).await?;
            tracing::warn!(in_use_by, "{what}: a table is in use, and it is tried again");
            Ok(Changed::InUse)
        }
        Err(error) => Err(error),
    }
}

/// Who has held locks on tables for longer than was just waited: program, process, kind of the last statement, and for how
/// long. The statement itself may hold anything.
async fn lock_holders(client: &Client) -> Result<String, StoreError> {
    let list =
        "SELECT DISTINCT pid, coalesce(application_name, ''), coalesce(upper(split_part(ltrim(query), ' ', 1)), ''),
            coalesce(extract(epoch FROM clock_timestamp() - xact_start)::bigint, 0)
        FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE locktype = 'relation' AND granted AND relation >= 16384 AND pid <> pg_backend_pid()
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (xact_start IS NULL OR xact_start < clock_timestamp() - $1 * interval '1 ms')
        ORDER BY 4 DESC, 1 LIMIT 5";
    let waited = LOCK_TIMEOUT.as_millis() as i64;
    let describe = |row: &Row| {
        let (pid, program, statement): (i32, &str, &str) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        Ok(format!("{program} (process {pid}, {statement}, for {} s)", row.try_get::<_, i64>(3)?))
    };
    let holders = client.query_typed(list, &[number(&waited)]).await?;
    let holders = holders.iter().map(describe).collect::<Result<Vec<_>, StoreError>>()?;
    Ok(holders.join(", "))
}
