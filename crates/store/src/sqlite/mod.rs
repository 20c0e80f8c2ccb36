//! The SQLite backend: one file with a write-ahead log and `synchronous=FULL`. Other processes may have it open, too.

mod backup;
mod connection;
mod export;
mod ledger;
mod schema;
mod usage;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chat::KeyId;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};

use crate::StoreError;
use crate::keys::{FIND_KEY, StoredKey};
use crate::sql::Row;

pub use backup::{BackupError, BackupSummary, back_up};
pub(crate) use connection::PooledConnection;
pub(crate) use export::Export;
use ledger::SqliteLedger;

/// Older versions have a race between checkpoint and commit that can corrupt the log.
const MIN_SQLITE_VERSION: i32 = 3_051_003;
/// How long to wait for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Sqlite {
    path: PathBuf,
    /// Connections that are not in use.
    idle: Mutex<Vec<Connection>>,
}

impl Sqlite {
    pub(crate) fn open(path: PathBuf) -> Result<Self, StoreError> {
        if rusqlite::version_number() < MIN_SQLITE_VERSION {
            return Err(StoreError::SqliteTooOld(rusqlite::version()));
        }
        create_private_file(&path);
        let mut connection = connect(&path)?;
        schema::migrate(&mut connection)?;
        Ok(Self { path, idle: Mutex::new(vec![connection]) })
    }

    pub(crate) fn open_ledger(&self) -> Result<Box<SqliteLedger>, StoreError> {
        Ok(Box::new(SqliteLedger::open(&self.path)?))
    }

    pub(crate) fn check_integrity(&self) -> Result<Vec<String>, StoreError> {
        self.with(|connection| Ok(faults(connection)?))
    }

    pub(crate) fn find_key(&self, id: KeyId) -> Result<Option<StoredKey>, StoreError> {
        self.with(|connection| {
            let mut find = connection.prepare_cached(FIND_KEY)?;
            let mut rows = find.query([id.as_str()])?;
            rows.next()?.map(|row| StoredKey::read(&Row::Sqlite(row))).transpose()
        })
    }
}

/// Makes a new database readable for this user only. If the path is wrong, SQLite will report it.
fn create_private_file(path: &Path) {
    let _ = File::options().write(true).create_new(true).mode(0o600).open(path);
}

fn connect(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// The problems found by reading every page.
fn faults(connection: &Connection) -> Result<Vec<String>, rusqlite::Error> {
    let mut check = connection.prepare("PRAGMA quick_check")?;
    let lines = check.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}
