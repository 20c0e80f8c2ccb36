//! API keys, accounts and the usage ledger: what must survive, and the only place that knows how it is kept.
//!
//! One `Store` over one database, SQLite's or PostgreSQL's, reached with bound parameters only. What people read or change goes through a
//! `Viewer`, and nobody gets to see or touch what is another's. Rows enter the ledger through `Ledger`, which
//! commits in groups and answers with a `Receipt` once a row is durable. Every figure is read from roll-ups that are
//! updated in the same transaction as the rows. Message text never gets here.

/// Calls the method of whichever backend there is: both have the same ones, and only a server has to be awaited.
macro_rules! dispatch {
    ($store:expr, $method:ident ($($argument:expr),*)) => {
        match &$store.backend {
            Backend::Sqlite(backend) => backend.$method($($argument),*),
            Backend::Postgres(backend) => backend.$method($($argument),*).await,
        }
    };
}

mod accounts;
mod audit;
mod copy;
mod counters;
mod id;
mod keys;
mod latency;
mod ledger;
mod links;
mod person_name;
mod postgres;
mod report;
mod rollup;
mod sessions;
mod sql;
mod sqlite;
mod token;
mod usage;
mod viewer;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use chat::RequestId;

pub use accounts::{Account, AccountError, Credentials, Email, EmailError, NewAccount};
pub use audit::AuditRecord;
pub use copy::{CopiedTable, CopyError, copy};
pub use counters::LedgerStats;
pub use id::{AccountId, LinkId, SessionId};
pub use keys::{Caller, KeyRecord, KeyState, NewKey};
pub use latency::{Latencies, Phase};
pub use ledger::{Ledger, LedgerWriter, Receipt, RecordError};
pub use links::{Link, LinkPurpose};
pub use person_name::{PersonName, PersonNameError};
pub use postgres::{PostgresSettings, PostgresUrl, PostgresUrlError};
pub use rollup::{Entry, Figures, GroundingRecord, Measured, Outcome, Timings};
pub use sessions::{Origin, Session, SessionRecord, StartedSession};
pub use sqlite::{BackupError, BackupSummary, back_up};
pub use token::Token;
pub use usage::{
    KeyUsage, OutcomeUsage, Period, RequestQuery, RequestRecord, Step, TimeSlice, UsageQuery, UsageReport,
};
pub use viewer::{Admin, Role, RoleError, Viewer};

use postgres::Postgres;
use sqlite::Sqlite;

/// Where a service keeps what must survive.
#[derive(Debug, Clone)]
pub enum Database {
    /// A file of one machine.
    Sqlite(PathBuf),
    /// A server that many replicas share.
    Postgres(PostgresSettings),
}

/// Without secrets.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Postgres(settings) => settings.url.fmt(f),
        }
    }
}

/// The database of one service.
pub struct Store {
    backend: Backend,
}

#[expect(clippy::large_enum_variant, reason = "there is one of it")]
enum Backend {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// Why the database could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite's own error.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// PostgreSQL's own error, or one on the way to it.
    #[error("{}", postgres::error_chain(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// There is no connection to the server.
    #[error("{0}")]
    Unreachable(String),
    /// The server did not answer in time.
    #[error("the database did not answer in time")]
    TimedOut,
    /// Every connection was in use for too long.
    #[error("all connections to the database are in use")]
    Busy,
    /// The certificates to trust cannot be had.
    #[error("the certificates to trust cannot be read: {0}")]
    Certificates(String),
    /// The file was written by a later version of this program.
    #[error("the database has schema {found}, this program knows up to {known}: a newer version has written it")]
    SchemaTooNew {
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

impl StoreError {
    /// PostgreSQL's code for what went wrong.
    fn sql_state(&self) -> Option<&tokio_postgres::error::SqlState> {
        match self {
            Self::Postgres(error) => error.code(),
            _ => None,
        }
    }
}

impl Store {
    /// Opens a database, made and migrated as needed.
    pub async fn open(database: &Database) -> Result<Self, StoreError> {
        let backend = match database {
            Database::Sqlite(path) => Backend::Sqlite(Sqlite::open(path.clone())?),
            Database::Postgres(settings) => Backend::Postgres(Postgres::open(settings).await?),
        };
        Ok(Self { backend })
    }

    /// Starts the ledger's writer. Rows older than `retention` are deleted, roll-ups are kept for good.
    pub fn start_ledger(&self, retention: Duration) -> Result<(Ledger, LedgerWriter), StoreError> {
        let backend: Box<dyn ledger::LedgerBackend> = match &self.backend {
            Backend::Sqlite(backend) => backend.open_ledger()?,
            Backend::Postgres(backend) => backend.open_ledger(),
        };
        ledger::start(backend, retention)
    }

    /// Figures from the roll-ups; `None` if they are about a key that the viewer may not see.
    pub async fn usage(&self, viewer: &Viewer, query: &UsageQuery) -> Result<Option<UsageReport>, StoreError> {
        dispatch!(self, usage(viewer, query, now_millis()))
    }

    /// Sums by key alone.
    pub async fn usage_by_key(&self, viewer: &Viewer, period: Period) -> Result<Vec<KeyUsage>, StoreError> {
        dispatch!(self, usage_by_key(viewer, period))
    }

    /// The newest requests that were asked for, newest first.
    pub async fn requests(&self, viewer: &Viewer, query: &RequestQuery) -> Result<Vec<RequestRecord>, StoreError> {
        dispatch!(self, requests(viewer, query))
    }

    /// One request.
    pub async fn request(&self, viewer: &Viewer, id: RequestId) -> Result<Option<RequestRecord>, StoreError> {
        dispatch!(self, request(viewer, id))
    }

    /// Reads every page and says what is broken; empty if nothing is.
    pub async fn check_integrity(&self) -> Result<Vec<String>, StoreError> {
        dispatch!(self, check_integrity())
    }
}

/// Milliseconds since 1970 by the system's clock.
fn now_millis() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.unwrap_or_default().as_millis() as u64
}
