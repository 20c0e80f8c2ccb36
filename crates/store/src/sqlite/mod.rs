//! The SQLite backend: one file, write-ahead log, `synchronous=FULL`. Any process may have it open beside us.

mod accounts;
mod audit;
mod backup;
mod export;
mod keys;
mod ledger;
mod links;
mod schema;
mod sessions;
mod usage;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Row};

use crate::StoreError;
use crate::id::Id;

pub use backup::{BackedUp, NotBackedUp, back_up};
pub(crate) use export::Export;
use ledger::LedgerFile;

/// Older versions can lose the race between a checkpoint and a commit, and corrupt the log.
const OLDEST_GOOD_VERSION: i32 = 3_051_003;
/// How long to wait for another process that writes.
const BUSY: Duration = Duration::from_secs(5);

pub(crate) struct Sqlite {
    path: PathBuf,
    /// Connections that nobody uses at the moment.
    idle: Mutex<Vec<Connection>>,
}

impl Sqlite {
    pub(crate) fn open(path: PathBuf) -> Result<Self, StoreError> {
        if rusqlite::version_number() < OLDEST_GOOD_VERSION {
            return Err(StoreError::SqliteTooOld(rusqlite::version()));
        }
        make_private(&path);
        let mut connection = connect(&path)?;
        schema::migrate(&mut connection)?;
        Ok(Self { path, idle: Mutex::new(vec![connection]) })
    }

    pub(crate) fn open_book(&self) -> Result<Box<LedgerFile>, StoreError> {
        Ok(Box::new(LedgerFile::open(&self.path)?))
    }

    pub(crate) fn faults(&self) -> Result<Vec<String>, StoreError> {
        self.with(|connection| Ok(faults(connection)?))
    }

    /// Runs something on an idle connection, or on a new one if all are in use.
    fn with<T>(&self, run: impl FnOnce(&mut Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let idle = self.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path)?,
        };
        let result = run(&mut connection);
        // After an error the connection may be in any state: it is closed instead of kept.
        if result.is_ok() {
            self.lock().push(connection);
        }
        result
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new database is nobody else's to read, in whatever folder it is. What is wrong with the path SQLite will say.
fn make_private(path: &Path) {
    let _ = File::options().write(true).create_new(true).mode(0o600).open(path);
}

fn connect(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// What is broken in a database, of which every page is read.
fn faults(connection: &Connection) -> Result<Vec<String>, rusqlite::Error> {
    let mut check = connection.prepare("PRAGMA quick_check")?;
    let lines = check.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}

/// A column that holds an id.
fn id<Of>(row: &Row<'_>, column: usize) -> Result<Id<Of>, rusqlite::Error> {
    parsed(row, column, "id")
}

/// A column that holds what reads back from its text.
fn parsed<T: std::str::FromStr>(row: &Row<'_>, column: usize, what: &str) -> Result<T, rusqlite::Error> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| rusqlite::Error::InvalidColumnType(column, what.to_owned(), rusqlite::types::Type::Text))
}
