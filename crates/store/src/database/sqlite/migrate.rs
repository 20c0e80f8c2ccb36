//! Migrations of a file.

use rusqlite::{Connection, TransactionBehavior};

use crate::StoreError;
use crate::database::schema::MIGRATIONS;

pub(crate) fn is_outdated(connection: &Connection) -> Result<bool, rusqlite::Error> {
    let (found, known) = versions(connection)?;
    Ok(found != known)
}

/// Migrates under the write lock, because several processes may start at the same time.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i64;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&transaction)?;
    let done = usize::try_from(found).ok().filter(|&done| done <= MIGRATIONS.len());
    for step in &MIGRATIONS[done.ok_or(StoreError::SchemaTooNew { found, known })?..] {
        transaction.execute_batch(&step.for_sqlite())?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    Ok(transaction.commit()?)
}

/// The versions of the database's schema and of the newest one.
pub(crate) fn versions(connection: &Connection) -> Result<(i64, i64), rusqlite::Error> {
    Ok((version(connection)?, MIGRATIONS.len() as i64))
}

fn version(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
