//! Everything that must survive: API keys, accounts, sessions, the audit log and the usage ledger.
//!
//! One `Store` works on one database, SQLite or PostgreSQL, with bound parameters only. People read and change through
//! a `Viewer`, which limits them to what is theirs. Rows enter the ledger through `Ledger`, which commits in groups and
//! returns a `Receipt` once a row is durable. Every figure is a sum over rows: most of them are in the roll-ups already,
//! and the last ones are added when it is read (`fold`). Message text never gets here.

/// Calls a method that both backends have. Only PostgreSQL's is async.
macro_rules! dispatch {
    ($store:expr, $method:ident ($($argument:expr),*)) => {
        match &$store.backend {
            Backend::Sqlite(backend) => backend.$method($($argument),*),
            Backend::Postgres(backend) => backend.$method($($argument),*).await,
        }
    };
}

/// Calls a method that both backends have and that may take long: SQLite's runs on a thread for reports.
macro_rules! dispatch_report {
    ($store:expr, $method:ident ($viewer:expr, $query:expr $(, $argument:expr)*)) => {
        match &$store.backend {
            Backend::Sqlite(backend) => {
                let (viewer, query) = (Clone::clone($viewer), Clone::clone($query));
                backend.report(move |sqlite| sqlite.$method(&viewer, &query $(, $argument)*)).await
            }
            Backend::Postgres(backend) => backend.$method($viewer, $query $(, $argument)*).await,
        }
    };
}

mod accounts;
mod audit;
mod audit_action;
mod challenges;
mod clock;
mod commit_id;
mod confirmations;
mod copy;
mod counters;
mod fold;
mod fold_schedule;
mod groups;
mod health;
mod id;
mod identities;
mod key_changes;
mod key_expiry;
mod key_search;
mod keys;
mod latency;
mod ledger;
mod limits;
mod links;
mod notices;
mod patterns;
mod people;
mod person_name;
mod postgres;
mod price_store;
mod prices;
mod project;
mod pruning;
mod replies;
mod report;
mod request_search;
mod retention;
mod rollup;
mod scope;
mod search_index;
mod second_factors;
mod sessions;
mod sign_in_failures;
mod sql;
mod sqlite;
mod sum_cache;
mod token;
mod unsummed;
mod usage;
mod viewer;
mod writer;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chat::{RequestId, Timestamp};

pub use accounts::{Access, Account, AccountChange, AccountError, Credentials, Email, EmailError, NewAccount};
pub use audit::{AuditPage, AuditQuery, AuditRecord, PasswordTry, ProviderRefusal, WrongPasswords};
pub use audit_action::{AuditAction, AuditSubject, SubjectKind};
pub use challenges::{Challenge, ChallengePurpose, CodeTry};
pub use copy::{CopiedTable, CopyError, copy};
pub use counters::LedgerStats;
pub use id::{AccountId, LinkId, SessionId};
pub use identities::{DeletedPerson, ProvidedPerson, ProvidedSignInError};
pub use key_changes::{KeyChange, KeyNote, KeyNoteError};
pub use key_expiry::ExpiringKey;
pub use key_search::{KeyOrder, KeySearch};
pub use keys::{Caller, Client, KeyRecord, KeyState, NewKey};
pub use latency::{Latencies, Phase};
pub use ledger::{Ledger, LedgerWriter, Receipt, RecordError};
pub use limits::{
    Budget, BudgetPeriod, BudgetRefusal, BudgetUnit, BudgetUse, Limit, LimitAmountError, LimitKind, LimitKindError,
    LimitReached, LimitUse, Permit, Refusal, ReserveError, Spending,
};
pub use links::{Link, LinkPurpose};
pub use notices::Notice;
pub use person_name::{PersonName, PersonNameError};
pub use postgres::{PostgresSettings, PostgresUrl, PostgresUrlError};
pub use price_store::PriceError;
pub use prices::{Cost, Currency, CurrencyError, Price, PriceList, TokenPrice, TokenPriceError};
pub use project::{Project, ProjectError};
pub use rollup::{Entry, Figures, GroundingRecord, Measured, Outcome, Timings};
pub use scope::Scope;
pub use second_factors::{
    AuthenticatorApp, Passkey, PasskeyRecord, RecoveryCode, SecondFactorCode, SecondFactors, UsedPasskey,
};
pub use sessions::{Origin, Proof, Session, SessionRecord, SignInError, SignInMethod, StartedSession};
pub use sqlite::{BackupError, BackupSummary, back_up, check_copy};
pub use token::Token;
pub use usage::{
    Grouping, KeyUsage, OutcomeUsage, Period, Person, PersonUsage, ProjectUsage, RecordedRequest, RequestPage,
    RequestQuery, StatusFilter, Step, TimeSlice, UsageQuery, UsageReport,
};
pub use viewer::{Admin, Role, RoleError, Viewer};

use parking_lot::RwLock;

use clock::StoreClock;
use counters::LedgerCounters;
use limits::LimitTable;
use postgres::Postgres;
use sqlite::Sqlite;

/// Which database to use.
#[derive(Debug, Clone)]
pub enum Database {
    Sqlite(PathBuf),
    /// Shared by all replicas.
    Postgres(PostgresSettings),
}

/// Without user and password.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Postgres(settings) => settings.url.fmt(f),
        }
    }
}

pub struct Store {
    backend: Backend,
    clock: Arc<StoreClock>,
    /// As they were loaded last.
    limits: RwLock<Arc<LimitTable>>,
    loading_limits: tokio::sync::Mutex<()>,
}

enum Backend {
    Sqlite(Arc<Sqlite>),
    Postgres(Postgres),
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("{}", postgres::error_chain(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error("{0}")]
    Unreachable(String),
    #[error("the database did not answer in time")]
    TimedOut,
    /// It is visible, and a fail-over may lose it.
    #[error("the database was kept from waiting for its standby: what was written may not be there; try again")]
    Unconfirmed,
    #[error("a pooler in transaction mode is between this program and PostgreSQL; use its session mode, or none")]
    SharedSessions,
    #[error("all connections to the database are in use")]
    Busy,
    #[error("the certificates to trust cannot be read: {0}")]
    Certificates(String),
    #[error("the database has schema {found}, this program knows up to {known}: a newer version has written it")]
    SchemaTooNew { found: i64, known: i64 },
    /// A stored value that this program cannot have written.
    #[error("the database holds a malformed {0}")]
    Corrupt(&'static str),
    /// Earlier versions can corrupt their write-ahead log.
    #[error("SQLite {0} is too old; at least 3.51.3 is needed")]
    SqliteTooOld(&'static str),
    #[error("SQLite can only read the file")]
    ReadOnly,
    #[error("another program has locked the file")]
    Locked,
    #[error("another service on this database file keeps the limits; PostgreSQL lets replicas share them")]
    LimitsKeptElsewhere,
    #[error("the file by which services on one database file exclude each other: {0}")]
    LimitLock(#[source] std::io::Error),
    /// After a failed fsync.
    #[error("the file is being closed and opened again")]
    Recovering,
    #[error("the file's log cannot be written: {0}")]
    Log(#[source] std::io::Error),
    /// Recorded requests could be lost in a power cut.
    #[error("SQLite keeps `{setting}` at `{found}` for this file, and `{wanted}` is needed")]
    SettingRefused { setting: &'static str, wanted: &'static str, found: String },
    /// Of the viewer, or their account was disabled, deleted or given another role.
    #[error("the session has ended")]
    SessionEnded,
    #[error("the system gave no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    #[error("the ledger's thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
    /// The person was not confirmed lately.
    #[error("this needs the password or passkey again")]
    NotConfirmed,
    #[error("reading the database panicked")]
    Panicked,
}

impl StoreError {
    /// Whether the database works, and a value in it cannot be understood.
    fn is_unreadable(&self) -> bool {
        use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};
        match self {
            Self::Corrupt(_) => true,
            Self::Sqlite(error) => {
                matches!(error, FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..))
            }
            _ => false,
        }
    }

    fn sql_state(&self) -> Option<&tokio_postgres::error::SqlState> {
        match self {
            Self::Postgres(error) => error.code(),
            _ => None,
        }
    }
}

impl Store {
    /// Opens a database, and creates or migrates its tables as needed.
    pub async fn open(database: &Database) -> Result<Self, StoreError> {
        let (backend, clock) = match database {
            Database::Sqlite(path) => {
                (Backend::Sqlite(Arc::new(Sqlite::open(path.clone())?)), Arc::new(StoreClock::this_machine()))
            }
            Database::Postgres(settings) => {
                let (backend, clock) = Postgres::open(settings).await?;
                (Backend::Postgres(backend), clock)
            }
        };
        Ok(Self { backend, clock, limits: RwLock::default(), loading_limits: Default::default() })
    }

    /// The time by which keys, sessions and links expire.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Starts the ledger's writer. Rows older than `retention` are deleted; roll-ups are kept forever.
    pub fn start_ledger(&self, retention: Duration) -> Result<(Ledger, LedgerWriter), StoreError> {
        let (clock, counters) = (self.clock.clone(), Arc::new(LedgerCounters::default()));
        match &self.backend {
            Backend::Sqlite(backend) => {
                ledger::start(backend.open_ledger(clock.clone()), None, clock, counters, retention)
            }
            Backend::Postgres(backend) => {
                let fold_thread = backend.start_fold_thread(clock.clone(), counters.clone())?;
                ledger::start(backend.open_ledger(clock.clone()), Some(fold_thread), clock, counters, retention)
            }
        }
    }

    /// Sums from the roll-ups; `None` if they are of a key that the viewer may not see.
    pub async fn usage(&self, viewer: &Viewer, query: &UsageQuery) -> Result<Option<UsageReport>, StoreError> {
        let now = self.now();
        dispatch_report!(self, usage(viewer, query, now))
    }

    pub async fn usage_by_key(&self, viewer: &Viewer, period: Period) -> Result<Vec<KeyUsage>, StoreError> {
        match &self.backend {
            Backend::Sqlite(backend) => {
                let viewer = viewer.clone();
                backend.report(move |sqlite| sqlite.usage_by_key(&viewer, period)).await
            }
            Backend::Postgres(backend) => backend.usage_by_key(viewer, period).await,
        }
    }

    /// Newest first, however long the search takes.
    pub async fn requests(&self, viewer: &Viewer, query: &RequestQuery) -> Result<Vec<RecordedRequest>, StoreError> {
        let (mut rows, mut query) = (Vec::new(), query.clone());
        loop {
            let page = self.search_requests(viewer, &query).await?;
            query.limit = query.limit.saturating_sub(page.rows.len() as u32);
            rows.extend(page.rows);
            match page.searched_to {
                Some(_) if query.limit > 0 => query.before = page.searched_to,
                _ => return Ok(rows),
            }
        }
    }

    /// Newest first. A search that looks at many rows stops, so that others get their turn.
    pub async fn search_requests(&self, viewer: &Viewer, query: &RequestQuery) -> Result<RequestPage, StoreError> {
        dispatch_report!(self, search_requests(viewer, query))
    }

    pub async fn request(&self, viewer: &Viewer, id: RequestId) -> Result<Option<RecordedRequest>, StoreError> {
        dispatch!(self, request(viewer, id))
    }

    /// The problems found; empty if there are none. Reads every page of a SQLite file.
    pub async fn check_integrity(&self) -> Result<Vec<String>, StoreError> {
        dispatch!(self, check_integrity())
    }
}
