//! The SQLite backend: one file with a write-ahead log and `synchronous=FULL`. Other processes may also have it open.

pub(crate) mod log;
pub(crate) mod migrate;
pub(crate) mod pool;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags};
use tokio::sync::Semaphore;

use crate::StoreError;

use log::settle_unless_in_use;
use pool::Pool;
pub(crate) use pool::{PooledConnection, numbered, ready};

/// Older versions have a race between checkpoint and commit that can corrupt the log.
const MIN_SQLITE_VERSION: i32 = 3_051_003;
/// How long to wait for the write lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports that may be read concurrently.
const MAX_REPORTS: usize = 2;

pub(crate) struct Sqlite {
    pool: Arc<Pool>,
    /// Whether `begin_change` was called.
    has_changes: AtomicBool,
    reports: Arc<Semaphore>,
}

impl Sqlite {
    pub(crate) fn open(path: PathBuf) -> Result<Self, StoreError> {
        create_private_file(&path);
        let mut connection = connect(&path)?;
        // Before this process has other connections, which could prevent it.
        settle_unless_in_use(&connection)?;
        if migrate::is_outdated(&connection)? {
            migrate::migrate(&mut connection)?;
            // SQLite creates a new file without the log, and that fsync may have failed in an earlier process. It deletes
            // the log of an empty file, so the file must be on the disk before any row is confirmed.
            settle_unless_in_use(&connection)?;
        }
        Ok(Self {
            pool: Arc::new(Pool::new(path, connection)),
            has_changes: AtomicBool::new(false),
            reports: Arc::new(Semaphore::new(MAX_REPORTS)),
        })
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The problems found by reading every page.
    pub(crate) fn faults(&self) -> Result<Vec<String>, StoreError> {
        self.with(|connection| Ok(faults(connection)?))
    }
}

impl Drop for Sqlite {
    /// Moves a command's changes into the file, so that the file alone can be copied. If this fails, the next start does it.
    fn drop(&mut self) {
        if *self.has_changes.get_mut() {
            let _ = self.with(|connection| settle_unless_in_use(connection));
        }
    }
}

/// Makes changes in one transaction, which waits for the write lock first, so that it cannot fail later because of it.
pub(crate) fn write<T, E: From<rusqlite::Error>>(
    connection: &mut Connection,
    change: impl FnOnce(&mut Connection) -> Result<T, E>,
) -> Result<T, E> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let result = change(connection).and_then(|changed| Ok(connection.execute_batch("COMMIT").map(|()| changed)?));
    if result.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK"); // if this fails, too, the next transaction does
    }
    result
}

/// Creates a new database readable only for this user. SQLite reports a wrong path.
fn create_private_file(path: &Path) {
    let _ = File::options().write(true).create_new(true).mode(0o600).open(path);
}

/// Settings that receipts and reports rely on: name, value, and the value as SQLite reports it. SQLite does not fail if it
/// cannot apply a setting, but keeps the old value.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("locking_mode", "NORMAL", "normal"), // commands and back-ups open the file beside the service
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", "2"),
    ("foreign_keys", "ON", "1"),
    ("wal_autocheckpoint", "0", "0"), // see `log`
];

/// Opens the file, and refuses it unless commits are durable.
pub(crate) fn connect(path: &Path) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < MIN_SQLITE_VERSION {
        return Err(StoreError::SqliteTooOld(rusqlite::version()));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // SQLite silently opens a file without write permission as read-only.
    if connection.is_readonly(MAIN_DB)? {
        return Err(StoreError::ReadOnly);
    }
    // See `log`. Also, if the log's index was opened read-only, closing the last connection would delete an unread log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    for &(setting, value, reported) in SETTINGS {
        set(&connection, setting, value, reported).map_err(|error| match error {
            StoreError::Sqlite(busy) if busy.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => StoreError::Locked,
            other => other,
        })?;
    }
    require_writable_log(&connection)?;
    Ok(connection)
}

/// Opens a file that is only read, and not migrated.
pub(crate) fn open_read_only(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Fails if the log or its index was opened read-only, which neither the file nor the settings show. Does not wait: it
/// suffices that another connection holds the write lock.
fn require_writable_log(connection: &Connection) -> Result<(), StoreError> {
    connection.busy_timeout(Duration::ZERO)?;
    match connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK") {
        Ok(()) => {}
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy) => {}
            Some(ErrorCode::ReadOnly) => return Err(StoreError::ReadOnly),
            _ => return Err(error.into()),
        },
    }
    Ok(connection.busy_timeout(BUSY_TIMEOUT)?)
}

fn set(connection: &Connection, setting: &'static str, value: &str, reported: &'static str) -> Result<(), StoreError> {
    connection.pragma_update(None, setting, value)?;
    let found = connection.pragma_query_value(None, setting, |row| row.get(0))?;
    let found = match found {
        Value::Text(text) => text,
        Value::Integer(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    if found == reported {
        return Ok(());
    }
    Err(StoreError::SettingRefused { setting, wanted: reported, found })
}

/// The problems found by reading every page.
pub(crate) fn faults(connection: &Connection) -> Result<Vec<String>, rusqlite::Error> {
    let mut check = connection.prepare("PRAGMA quick_check")?;
    let lines = check.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}
