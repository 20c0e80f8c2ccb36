//! Persistent state: API keys, accounts, sessions, the audit log and the usage ledger.
//!
//! One `Store` works on one database, SQLite or PostgreSQL, with bound parameters only. It opens it, has the clock, and
//! hands out the subjects: `store.keys()`, `store.limits()`, `store.usage()` and so on. Each folder is a subject, with its
//! rule, its statements and the parts of both databases; imports between folders run one way (`tests/suite/imports.rs`):
//!
//! `values` ← `database` ← `audit` ← `identity` ← `usage` ← `keys` ← `limits` ← `people` ← `service` ← `ledger` ← `copying`
//!
//! People read and change data through a `Viewer`, which restricts them to their own. Rows enter the ledger through
//! `Ledger`, which commits in groups and returns a `Receipt` once a row is durable. Message text is never stored.

mod audit;
mod copying;
mod database;
mod identity;
mod keys;
mod ledger;
mod limits;
mod people;
mod service;
mod usage;
mod values;

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chat::Timestamp;

pub use audit::action::{AuditAction, AuditSubject, ProviderRefusal, SignInMethod, SubjectKind};
pub use audit::log::{AuditPage, AuditQuery, AuditRecord, PasswordTry, WrongPasswords};
pub use copying::backup::{BackupError, BackupSummary, back_up, check_copy};
pub use copying::copy::{CopiedTable, CopyError, copy};
pub use database::postgres::{PostgresSettings, PostgresUrl, PostgresUrlError};
pub use identity::accounts::{AccountChange, AccountError, Credentials, NewAccount};
pub use identity::challenges::{Challenge, ChallengePurpose, CodeTry};
pub use identity::links::{Link, LinkPurpose};
pub use identity::provider::{DeletedPerson, ProvidedPerson, ProvidedSignInError};
pub use identity::second_factors::{
    AuthenticatorApp, Passkey, PasskeyRecord, RecoveryCode, SecondFactorCode, SecondFactors, UsedPasskey,
};
pub use identity::sessions::{Origin, Proof, Session, SessionRecord, SignInError, StartedSession};
pub use keys::changes::{KeyChange, KeyNote, KeyNoteError};
pub use keys::key::{Caller, Client, KeyRecord, KeyState, NewKey};
pub use keys::search::{KeyOrder, KeySearch};
pub use ledger::counters::LedgerStats;
pub use ledger::queue::{Ledger, LedgerWriter, Receipt, RecordError};
pub use limits::budget::{BudgetUse, LimitUse};
pub use limits::permit::{Permit, ReserveError};
pub use limits::spending::Spending;
pub use limits::state::{BudgetRefusal, LimitReached, Refusal};
pub use people::Access;
pub use service::notices::Notice;
pub use usage::cost::{Cost, Price, PriceList};
pub use usage::latency::{Latencies, Phase};
pub use usage::prices::PriceError;
pub use usage::query::{
    GroupLabel, Grouping, Period, Person, RecordedRequest, RequestPage, RequestQuery, StatusFilter, Step, UsageGroup,
    UsageQuery, UsageReport, UsedKey,
};
pub use usage::rollup::{Entry, Figures, GroundingRecord, InferenceRecord, Measured, Outcome, Timings};
pub use values::{
    Account, AccountId, Admin, Budget, BudgetPeriod, BudgetUnit, Currency, CurrencyError, Email, EmailError, Limit,
    LimitAmountError, LimitKind, LimitKindError, LinkId, PersonName, PersonNameError, Project, ProjectError, Role,
    RoleError, Scope, SessionId, Token, TokenPrice, TokenPriceError, Viewer,
};

use database::clock::StoreClock;
use database::postgres::Postgres;
use database::sqlite::Sqlite;
use database::{Backend, Base};
use keys::lookup::KeyLookup;
use ledger::counters::LedgerCounters;
use ledger::fold::{COUNT_UNREADABLE, describe_unreadable};
use ledger::postgres::PostgresLedger;
use ledger::postgres_fold::FoldThread;
use ledger::sqlite::SqliteLedger;
use limits::in_force::LimitsInForce;

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
    base: Base,
    keys: KeyLookup,
    limits: LimitsInForce,
}

/// Declares handles of the store. The folder of a subject has its functions.
macro_rules! subjects {
    ($($(#[$doc:meta])* $subject:ident: $Subject:ident,)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub struct $Subject<'a>(&'a Store);

            impl Deref for $Subject<'_> {
                type Target = Base;

                fn deref(&self) -> &Base {
                    &self.0.base
                }
            }
        )*

        impl Store {
            $(
                $(#[$doc])*
                pub fn $subject(&self) -> $Subject<'_> {
                    $Subject(self)
                }
            )*
        }
    };
}

subjects! {
    /// The audit log.
    audit_log: AuditLog,
    /// People's accounts.
    accounts: Accounts,
    /// Sign-ins that are under way: challenges, codes, failures, and confirmations of people who are signed in.
    sign_ins: SignIns,
    /// Links for set-up, invitations and new passwords.
    links: Links,
    /// Accounts at the identity provider.
    provider_accounts: ProviderAccounts,
    /// Second factors.
    second_factors: Factors,
    /// Sessions of people who are signed in.
    sessions: Sessions,
    /// API keys.
    keys: Keys,
    /// Limits and reservations.
    limits: Limits,
    /// Reports and recorded requests.
    usage: Usage,
    /// Prices.
    prices: Prices,
    /// Notices for the webhook.
    notices: Notices,
    /// The search index that the database expects.
    search_index: SearchIndex,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("{}", database::postgres::error_chain(.0))]
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
    /// Another connection has the file open.
    #[error("the write-ahead log cannot yet be moved into the database file")]
    LogInUse,
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
        let base = Base { backend, clock };
        Ok(Self { keys: KeyLookup::new(&base.backend), limits: LimitsInForce::new(&base), base })
    }

    /// The clock for the expiry of keys, sessions and links.
    pub fn now(&self) -> Timestamp {
        self.base.now()
    }

    /// Starts the ledger's writer. Rows older than `retention` are deleted; roll-ups are kept forever.
    pub fn start_ledger(&self, retention: Duration) -> Result<(Ledger, LedgerWriter), StoreError> {
        let (clock, counters) = (self.base.clock.clone(), Arc::new(LedgerCounters::default()));
        match &self.base.backend {
            Backend::Sqlite(backend) => {
                let backend = Box::new(SqliteLedger::new(backend.pool().clone(), clock.clone()));
                ledger::queue::start(backend, None, clock, counters, retention)
            }
            Backend::Postgres(backend) => {
                let fold = FoldThread::start(backend.server().clone(), clock.clone(), counters.clone())?;
                let backend = Box::new(PostgresLedger::new(backend.server().clone(), clock.clone()));
                ledger::queue::start(backend, Some(fold), clock, counters, retention)
            }
        }
    }

    /// The problems found; empty if there are none. Reads every page of a SQLite file.
    pub async fn check_integrity(&self) -> Result<Vec<String>, StoreError> {
        let mut problems = match &self.base.backend {
            Backend::Sqlite(sqlite) => sqlite.faults()?,
            Backend::Postgres(postgres) => postgres.faults().await?,
        };
        let unreadable = self.base.connection().await?.query_value(COUNT_UNREADABLE, &[]).await?;
        problems.extend(describe_unreadable(unreadable));
        Ok(problems)
    }
}
