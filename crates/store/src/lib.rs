//! Persistent state: API keys, accounts, sessions, the audit log and the usage ledger.
//!
//! One `Store` works on one database, SQLite or PostgreSQL, with bound parameters only. People read and change data through
//! a `Viewer`, which restricts them to their own. Rows enter the ledger through `Ledger`, which commits in groups and
//! returns a `Receipt` once a row is durable. Every figure is a sum over rows: the roll-ups contain most of them, and a
//! read adds the newest ones (`fold`). Message text is never stored.

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
mod pending;
mod people;
mod person_name;
mod postgres;
mod price_store;
mod prices;
mod project;
mod pruning;
mod replies;
mod report;
mod reports;
mod requests;
mod retention;
mod rollup;
mod scope;
mod search_index;
mod second_factors;
mod sessions;
mod sign_in_failures;
mod snapshot;
mod sql;
mod sqlite;
mod token;
mod unfolded;
mod usage;
mod viewer;
mod writer;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chat::Timestamp;

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
pub use rollup::{Entry, Figures, GroundingRecord, InferenceRecord, Measured, Outcome, Timings};
pub use scope::Scope;
pub use second_factors::{
    AuthenticatorApp, Passkey, PasskeyRecord, RecoveryCode, SecondFactorCode, SecondFactors, UsedPasskey,
};
pub use sessions::{Origin, Proof, Session, SessionRecord, SignInError, SignInMethod, StartedSession};
pub use sqlite::{BackupError, BackupSummary, back_up, check_copy};
pub use token::Token;
pub use usage::{
    GroupLabel, Grouping, Period, Person, RecordedRequest, RequestPage, RequestQuery, StatusFilter, Step, UsageGroup,
    UsageQuery, UsageReport, UsedKey,
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
    /// The limits loaded last.
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
    /// The change is visible, but a failover may lose it.
    #[error("the database did not wait for its standby, and a failover may lose this change; try again")]
    Unconfirmed,
    #[error("a pooler in transaction mode is in front of PostgreSQL; use its session mode, or connect directly")]
    SharedSessions,
    #[error("all connections to the database are in use")]
    Busy,
    #[error("the certificates to trust cannot be read: {0}")]
    Certificates(String),
    #[error("the database has schema {found}, but this program knows at most {known}: a newer version has written it")]
    SchemaTooNew { found: i64, known: i64 },
    /// A stored value that this program cannot have written.
    #[error("the database holds a malformed {0}")]
    Corrupt(&'static str),
    /// Earlier versions can corrupt the write-ahead log.
    #[error("SQLite {0} is too old; at least 3.51.3 is needed")]
    SqliteTooOld(&'static str),
    #[error("the database file is read-only")]
    ReadOnly,
    #[error("another program has locked the database file")]
    Locked,
    #[error("another service enforces the limits of this database file; only PostgreSQL lets replicas share them")]
    LimitsKeptElsewhere,
    #[error("the lock file of the limits: {0}")]
    LimitLock(#[source] std::io::Error),
    /// After a failed fsync.
    #[error("the database file is being reopened")]
    Recovering,
    #[error("the file's log cannot be written: {0}")]
    Log(#[source] std::io::Error),
    /// A power failure could lose recorded requests.
    #[error("SQLite keeps `{setting}` at `{found}` for this file, and `{wanted}` is needed")]
    SettingRefused { setting: &'static str, wanted: &'static str, found: String },
    /// The viewer's session. It also ends when the account is disabled, deleted or given another role.
    #[error("the session has ended")]
    SessionEnded,
    #[error("the system returned no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    #[error("the ledger's thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
    /// The session has no recent confirmation.
    #[error("this needs the password or passkey again")]
    NotConfirmed,
    #[error("reading the database panicked")]
    Panicked,
}

impl StoreError {
    /// Whether the database works but holds a value that cannot be read.
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

    /// The clock for the expiry of keys, sessions and links.
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

    /// The problems found; empty if there are none. Reads every page of a SQLite file.
    pub async fn check_integrity(&self) -> Result<Vec<String>, StoreError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.check_integrity(),
            Backend::Postgres(postgres) => postgres.check_integrity().await,
        }
    }
}
