//! Moving the write-ahead log into the database file (a checkpoint).
//!
//! SQLite remembers in the log's index how much of the log is in the file already. When an fsync of the file fails, what
//! was written before it can be lost although it can still be read, and what is remembered is wrong. So after any failed
//! fsync the whole log is moved once more: the index is gone when nobody has the file open, and the next one to open it
//! begins at the start of the log. That is why SQLite's own checkpoints, which say nothing when they fail, are off
//! (`connect`), and why nobody goes on with a checkpoint that somebody else began, except for the ledger's writer.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::BUSY_TIMEOUT;
use crate::StoreError;

/// 4 MiB of log, after which it is moved.
const CHECKPOINT_PAGES: i64 = 1024;

struct LogState {
    pages: i64,
    /// Of these, how many SQLite holds to be in the file already.
    moved: i64,
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

/// Moves the whole log, from its start, and empties it; `false` if others that use it prevent that.
///
/// A process that was killed may have left something in the log whose fsync had failed. It can be read, and is not on
/// the disk, and no later fsync brings it there. In a power cut, everything written after it would be lost with it.
///
/// The log's name must be on the disk, too. SQLite syncs the folder for that, and does not look whether it succeeds.
pub(super) fn settle(connection: &Connection) -> Result<bool, StoreError> {
    if state(connection)?.moved > 0 {
        return Ok(false);
    }
    let blocked: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    let folder = connection.path().and_then(|path| Path::new(path).parent());
    if let Some(folder) = folder {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(StoreError::Folder)?;
    }
    Ok(blocked == 0)
}

/// Settles the log, without making anybody wait: if another process writes, it has settled the log itself.
pub(super) fn settle_unless_in_use(connection: &Connection) -> Result<(), StoreError> {
    connection.busy_timeout(Duration::ZERO)?;
    settle(connection)?;
    Ok(connection.busy_timeout(BUSY_TIMEOUT)?)
}

/// Moves the whole log at the end of a process that was the one to move it, so that the file can be copied on its own.
pub(super) fn empty(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}
