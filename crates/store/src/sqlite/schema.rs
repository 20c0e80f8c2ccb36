//! The tables, step by step. A step that was released never changes; a new one is added behind it.

use rusqlite::{Connection, TransactionBehavior};

use crate::StoreError;

const STEPS: &[&str] = &[
    // Times are milliseconds since 1970 unless their name says otherwise. `requests` has one B-tree, by id: ids are
    // ordered by time, so it grows at its end. A roll-up with the key '' is over all keys.
    "CREATE TABLE keys (
        id TEXT NOT NULL PRIMARY KEY,
        digest BLOB NOT NULL,
        name TEXT NOT NULL,
        completions INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        revoked_at INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE requests (
        id BLOB NOT NULL PRIMARY KEY CHECK (length(id) = 16),
        key_id TEXT NOT NULL,
        status INTEGER NOT NULL,
        code TEXT,
        prompt_tokens INTEGER,
        completion_tokens INTEGER,
        total_tokens INTEGER,
        queue_us INTEGER,
        search_us INTEGER,
        inference_us INTEGER,
        total_us INTEGER NOT NULL,
        commit_id INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE commits (
        id INTEGER NOT NULL PRIMARY KEY,
        persisted_at_us INTEGER
    ) STRICT;
    CREATE TABLE rollups (
        span INTEGER NOT NULL,
        key_id TEXT NOT NULL,
        start INTEGER NOT NULL,
        status INTEGER NOT NULL,
        code TEXT NOT NULL,
        requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        prompt_measured INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        completion_measured INTEGER NOT NULL,
        total_tokens INTEGER NOT NULL,
        total_measured INTEGER NOT NULL,
        last_at INTEGER NOT NULL,
        latencies BLOB NOT NULL,
        PRIMARY KEY (span, key_id, start, status, code)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE probe (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        filler BLOB NOT NULL
    ) STRICT;",
];

/// Takes the database to the newest schema, under its write lock: several processes may start at once.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let known = STEPS.len() as i64;
    if version(connection)? == known {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&transaction)?;
    let done = usize::try_from(found).ok().filter(|&done| done <= STEPS.len());
    for step in &STEPS[done.ok_or(StoreError::FromTheFuture { found, known })?..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    Ok(transaction.commit()?)
}

fn version(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
