//! Schema changes while replicas serve. A statement that waits for a table lock blocks all later ones. So it waits only for
//! a fraction of a second, then logs the processes that hold the lock, and the caller retries later.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, Transaction};

use crate::StoreError;
use crate::database::postgres::typed;
use crate::database::sql::params;

const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

pub(crate) enum Changed<T> {
    Done(T),
    /// The change returned `None`.
    Declined,
    /// A lock was not granted in time.
    InUse,
}

/// Makes a change in one transaction. It is rolled back if it returns `None`.
pub(crate) async fn change_tables<T>(
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
            tracing::warn!(in_use_by, "{what}: a table is in use; retrying later");
            Ok(Changed::InUse)
        }
        Err(error) => Err(error),
    }
}

/// The processes that have held table locks for longer than `LOCK_TIMEOUT`: program, process id, first word of the last
/// statement, and duration. The full statement is not logged, because it may contain anything.
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
    let holders = client.query_typed(list, &typed(params![waited])).await?;
    let holders = holders.iter().map(describe).collect::<Result<Vec<_>, StoreError>>()?;
    Ok(holders.join(", "))
}
