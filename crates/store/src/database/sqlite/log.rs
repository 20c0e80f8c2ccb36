//! Checkpoints: moving the write-ahead log into the database file, on a disk whose fsyncs may fail.
//!
//! Pages that were written before a failed fsync can still be read, but may never reach the disk: a later fsync succeeds
//! without them. SQLite does not handle this in three cases.
//! - Its automatic checkpoints do not report failures, and the next one continues after the pages that the last one moved.
//!   They are off (`connect`): the ledger's writer makes checkpoints, and after a failure all connections are closed, so
//!   that the next one starts at the beginning of the log.
//! - It moves pages from the log of a killed process into the file, although they may not be on the disk. Replaying the
//!   log that is on the disk would then undo only some of these changes. So a log that another process has left is
//!   rewritten before it is used.
//! - The same happens in a running process if all of its connections were closed in between. So one stays open (`pool`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use crate::StoreError;
use crate::database::sqlite::BUSY_TIMEOUT;

/// The length of the log at which it is moved: 4 MiB.
const CHECKPOINT_PAGES: u64 = 1024;
/// The log's format, from SQLite's documentation.
const LOG_HEADER_BYTES: u64 = 32;
const PAGE_HEADER_BYTES: u64 = 24;
const REWRITE_BYTES: usize = 256 * 1024;

struct LogState {
    pages: u64,
    /// The number of these pages that, according to SQLite, are already in the file.
    moved: u64,
}

fn state(connection: &Connection) -> Result<LogState, rusqlite::Error> {
    let read = |row: &rusqlite::Row<'_>| Ok(LogState { pages: row.get(1)?, moved: row.get(2)? });
    connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], read)
}

/// Moves as many pages as possible without waiting for other connections, if the log is long.
pub(crate) fn checkpoint_if_long(connection: &Connection) -> Result<(), rusqlite::Error> {
    let log = state(connection)?;
    if log.pages < CHECKPOINT_PAGES || log.moved == log.pages {
        return Ok(());
    }
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Rewrites the whole log to the disk, moves it from its start, and empties it. `false` if other connections prevent this.
pub(crate) fn settle(connection: &Connection) -> Result<bool, StoreError> {
    let log = state(connection)?;
    if log.moved > 0 {
        return Ok(false);
    }
    // While this connection holds the write lock, no other writes to the log.
    match connection.execute_batch("BEGIN IMMEDIATE") {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => return Ok(false),
        begun => begun?,
    }
    let page_bytes: u64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let rewritten = rewrite(connection, LOG_HEADER_BYTES + log.pages * (PAGE_HEADER_BYTES + page_bytes));
    connection.execute_batch("ROLLBACK")?;
    rewritten.map_err(StoreError::Log)?;
    empty(connection)
}

/// Settles the log without waiting: if another process writes, that one has already settled the log.
pub(crate) fn settle_unless_in_use(connection: &Connection) -> Result<(), StoreError> {
    connection.busy_timeout(Duration::ZERO)?;
    settle(connection)?;
    Ok(connection.busy_timeout(BUSY_TIMEOUT)?)
}

/// Moves the whole log and empties it, so that the file alone can be copied. `false` if other connections prevent this.
pub(crate) fn empty(connection: &Connection) -> Result<bool, StoreError> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| Ok(row.get::<_, i64>(0)? == 0))?)
}

/// Overwrites the first bytes of the log with themselves, so that an fsync writes all of them to the disk. Also syncs the
/// folder, for the log's name: SQLite does so, but ignores failures.
fn rewrite(connection: &Connection, bytes: u64) -> io::Result<()> {
    let database = connection.path().ok_or(io::ErrorKind::NotFound)?;
    let file = File::options().read(true).write(true).open(format!("{database}-wal"))?;
    let end = bytes.min(file.metadata()?.len());
    let mut buffer = vec![0; REWRITE_BYTES];
    let mut offset = 0;
    while offset < end {
        let part = &mut buffer[..REWRITE_BYTES.min((end - offset) as usize)];
        file.read_exact_at(part, offset)?;
        file.write_all_at(part, offset)?;
        offset += part.len() as u64;
    }
    file.sync_all()?;
    Path::new(database).parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
