//! API keys and the usage ledger: what must survive, and the only place that knows how it is kept.
//!
//! One `Store` over one database, reached with bound parameters only. Rows enter the ledger through `Ledger`, which
//! commits in groups and answers with a `Receipt` once a row is durable. Every figure is read from roll-ups that are
//! updated in the same transaction as the rows. Message text never gets here.

mod keys;
mod latency;
mod ledger;
mod rollup;
mod sqlite;
mod usage;

use std::path::PathBuf;
use std::time::Duration;

use chat::{ApiKey, KeyId};

pub use keys::{Caller, KeyRecord, KeyState, NewKey};
pub use latency::{Latencies, Phase};
pub use ledger::{Ledger, LedgerWriter, NotRecorded, Receipt};
pub use rollup::{Entry, Figures, Measured, Outcome, Timings};
pub use usage::{KeyUsage, OutcomeUsage, RequestRecord, UsageReport};

use sqlite::Sqlite;

/// The database of one service.
pub struct Store {
    sqlite: Sqlite,
}

/// Why the database could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite's own error.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The file was written by a later version of this program.
    #[error("the database has schema {found}, this program knows up to {known}: a newer version has written it")]
    FromTheFuture {
        /// The schema in the file.
        found: i64,
        /// The newest schema known here.
        known: i64,
    },
    /// What is stored cannot be what we stored.
    #[error("the database holds a {0} that does not read back")]
    Corrupt(&'static str),
    /// SQLite before 3.51.3 can corrupt its write-ahead log.
    #[error("SQLite {0} is too old; at least 3.51.3 is needed")]
    SqliteTooOld(&'static str),
    /// No random numbers to be had.
    #[error("the system gave no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The writer thread could not be started.
    #[error("the ledger's thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
}

impl Store {
    /// Opens the SQLite database at that path, made and migrated as needed.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Ok(Self { sqlite: Sqlite::open(path.into())? })
    }

    /// Who presents that key? `None` for a key that is unknown, expired or revoked, whichever it is.
    ///
    /// Asks the database every time, so that a key revoked by any process is refused by the next request.
    pub async fn authenticate(&self, key: &ApiKey) -> Result<Option<Caller>, StoreError> {
        let found = self.sqlite.find_key(key.id())?;
        Ok(keys::verify(key, found, now_millis()))
    }

    /// Makes a key; the plaintext is in the answer and nowhere else.
    pub async fn create_key(&self, new: NewKey) -> Result<ApiKey, StoreError> {
        let key = ApiKey::generate()?;
        self.sqlite.insert_key(&key, &new, now_millis())?;
        Ok(key)
    }

    /// Every key, the newest last.
    pub async fn list_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.sqlite.list_keys()
    }

    /// How many keys there are, revoked ones included.
    pub async fn count_keys(&self) -> Result<u64, StoreError> {
        self.sqlite.count_keys()
    }

    /// Gives a key another name; `false` if there is no such key.
    pub async fn rename_key(&self, id: KeyId, name: &str) -> Result<bool, StoreError> {
        self.sqlite.rename_key(id, name)
    }

    /// Ends a key for good. `None` if there is no such key; otherwise when it was revoked, now or before.
    pub async fn revoke_key(&self, id: KeyId) -> Result<Option<u64>, StoreError> {
        self.sqlite.revoke_key(id, now_millis())
    }

    /// Starts the ledger's writer. Rows older than `retention` are deleted, roll-ups are kept for good.
    pub fn start_ledger(&self, retention: Duration) -> Result<(Ledger, LedgerWriter), StoreError> {
        ledger::start(self.sqlite.open_ledger()?, retention)
    }

    /// The figures since that time (rounded down to the hour), from the roll-ups.
    pub async fn usage(&self, since_millis: u64) -> Result<UsageReport, StoreError> {
        self.sqlite.usage(since_millis, now_millis())
    }

    /// The newest rows since that time, newest first.
    pub async fn requests(&self, since_millis: u64, limit: u32) -> Result<Vec<RequestRecord>, StoreError> {
        self.sqlite.requests(since_millis, limit)
    }

    /// Reads every page and says what is broken; empty if nothing is.
    pub async fn faults(&self) -> Result<Vec<String>, StoreError> {
        self.sqlite.faults()
    }
}

/// Milliseconds since 1970 by the system's clock.
fn now_millis() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.unwrap_or_default().as_millis() as u64
}
