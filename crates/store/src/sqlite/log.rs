//! Moving the write-ahead log into the database file (a checkpoint), on a disk whose fsyncs fail.
//!
//! What was written before a failed fsync can still be read, and may never reach the disk: a later fsync succeeds without
//! it. SQLite does not reckon with that in three places.
//! - Its automatic checkpoints say nothing when they fail, and the next one goes on behind what the last one moved. They
//!   are off (`connect`): the ledger's writer moves the log, and after a failure everyone closes the file, so that
//!   the one who opens it next begins at the start of the log.
//! - It moves into the file what it reads in the log of a process that was killed, although that may not be on the disk.
//!   Replaying the log that is on the disk would then take only some of these changes back. So before a log is used that
//!   others have left, it is written once more.
//! - The same happens in a process that goes on, if all its connections were closed in between. So one stays open
//!   (`pool`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::BUSY_TIMEOUT;
use crate::StoreError;

/// 4 MiB of log, after which it is moved.
const CHECKPOINT_PAGES: u64 = 1024;
/// The log's format, from SQLite's documentation.
const LOG_HEADER_BYTES: u64 = 32;
const PAGE_HEADER_BYTES: u64 = 24;
const REWRITE_BYTES: usize = 256 * 1024;

struct LogState {
    pages: u64,
    /// Of these, how many SQLite holds to be in the file already.
    moved: u64,
}

fn state(connection: &Connection) -> Result<LogState, rusqlite::Error> {
    let read = |row: &rusqlite::Row<'_>| Ok(LogState { pages: row.get(1)?, moved: row.get(2)? });
    connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], read)
}

/// Moves what can be moved without waiting for anybody, if the log is long.
pub(super) fn checkpoint_if_long(connection: &Connection) -> Result<(), rusqlite::Error> {
    let log = state(connection)?;
    if log.pages < CHECKPOINT_PAGES || log.moved == log.pages {
        return Ok(());
    }
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Brings the whole log to the disk, moves it from its start, and empties it. `false` if others that use it prevent that.
pub(super) fn settle(connection: &Connection) -> Result<bool, StoreError> {
    let log = state(connection)?;
    if log.moved > 0 {
        return Ok(false);
    }
    // While this connection may write, nobody else writes to the log.
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

/// Settles the log, without making anybody wait: if another process writes, it has settled the log itself.
pub(super) fn settle_unless_in_use(connection: &Connection) -> Result<(), StoreError> {
    connection.busy_timeout(Duration::ZERO)?;
    settle(connection)?;
    Ok(connection.busy_timeout(BUSY_TIMEOUT)?)
}

/// Moves the whole log and empties it, so that the file can be copied on its own. `false` if others prevent that.
pub(super) fn empty(connection: &Connection) -> Result<bool, StoreError> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| Ok(row.get::<_, i64>(0)? == 0))?)
}

/// Writes the first bytes of the log over themselves, so that an fsync brings all of them to the disk. The log's name
/// must be there, too: SQLite syncs the folder, and does not look whether it succeeds.
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
