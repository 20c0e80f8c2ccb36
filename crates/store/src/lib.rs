//! API keys, accounts and the usage ledger: what must survive, and the only place that knows how it is kept.
//!
//! One `Store` over one database, SQLite's or PostgreSQL's, reached with bound parameters only. What people read or change goes through a
//! `Viewer`, and nobody gets to see or touch what is another's. Rows enter the ledger through `Ledger`, which
//! commits in groups and answers with a `Receipt` once a row is durable. Every figure is read from roll-ups that are
//! updated in the same transaction as the rows. Message text never gets here.

mod accounts;
mod copy;
mod id;
mod keys;
mod latency;
mod ledger;
mod postgres;
mod rollup;
mod sqlite;
mod summing;
mod token;
mod usage;
mod viewer;
mod work;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use chat::{ApiKey, KeyId, RequestId};

pub use accounts::{
    Account, AuditRecord, Begun, Credentials, Declined, Email, Link, LinkFor, NewAccount, NotAnEmail, Origin, Session,
    SessionRecord,
};
pub use copy::{Copied, NotCopied, copy};
pub use id::{AccountId, LinkId, SessionId};
pub use keys::{Caller, KeyRecord, KeyState, NewKey};
pub use latency::{Latencies, Phase};
pub use ledger::{Ledger, LedgerWriter, NotRecorded, Receipt};
pub use postgres::{PostgresSettings, PostgresUrl, UnusableDatabase};
pub use rollup::{Entry, Figures, GroundingRecord, Measured, Outcome, Timings};
pub use sqlite::{BackedUp, NotBackedUp, back_up};
pub use token::Token;
pub use usage::{KeyUsage, OutcomeUsage, Period, RequestQuery, RequestRecord, Slice, Step, UsageQuery, UsageReport};
pub use viewer::{Admin, Role, UnknownRole, Viewer};
pub use work::LedgerFigures;

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

/// Asks whichever backend there is: both have the same methods, and only a server has to be waited for.
macro_rules! ask {
    ($store:expr, $method:ident ($($argument:expr),*)) => {
        match &$store.backend {
            Backend::Sqlite(backend) => backend.$method($($argument),*),
            Backend::Postgres(backend) => backend.$method($($argument),*).await,
        }
    };
}

/// Why the database could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite's own error.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// PostgreSQL's own error, or one on the way to it.
    #[error("{}", postgres::whole(.0))]
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

    /// Who presents that key? `None` for a key that is unknown, expired or revoked, whichever it is.
    ///
    /// Asks the database every time, so that a key revoked by any process is refused by the next request.
    pub async fn authenticate(&self, key: &ApiKey) -> Result<Option<Caller>, StoreError> {
        let found = ask!(self, find_key(key.id()))?;
        Ok(keys::verify(key, found, now_millis()))
    }

    /// Makes a key of the viewer's; the plaintext is in the answer and nowhere else.
    pub async fn create_key(&self, viewer: &Viewer, new: NewKey) -> Result<ApiKey, StoreError> {
        let key = ApiKey::generate()?;
        ask!(self, insert_key(viewer, &key, &new, now_millis()))?;
        Ok(key)
    }

    /// The viewer's keys, or everyone's for an administrator; the newest last.
    pub async fn list_keys(&self, viewer: &Viewer) -> Result<Vec<KeyRecord>, StoreError> {
        ask!(self, list_keys(viewer))
    }

    /// One of them.
    pub async fn key(&self, viewer: &Viewer, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        ask!(self, get_key(viewer, id))
    }

    /// Whether there are any.
    pub async fn has_keys(&self, viewer: &Viewer) -> Result<bool, StoreError> {
        ask!(self, has_keys(viewer))
    }

    /// How many keys there are, revoked ones included.
    pub async fn count_keys(&self) -> Result<u64, StoreError> {
        ask!(self, count_keys())
    }

    /// Gives a key another name; `false` if there is no such key.
    pub async fn rename_key(&self, viewer: &Viewer, id: KeyId, name: &str) -> Result<bool, StoreError> {
        ask!(self, rename_key(viewer, id, name, now_millis()))
    }

    /// Ends a key for good. `None` if there is no such key; otherwise when it was revoked, now or before.
    pub async fn revoke_key(&self, viewer: &Viewer, id: KeyId) -> Result<Option<u64>, StoreError> {
        ask!(self, revoke_key(viewer, id, now_millis()))
    }

    /// The signed-in viewer as a caller of the API, for the console's playground.
    pub async fn playground(&self, viewer: &Viewer) -> Result<Option<Caller>, StoreError> {
        let Some(account) = viewer.id() else { return Ok(None) };
        ask!(self, playground(account, now_millis())).map(Some)
    }

    /// Starts the ledger's writer. Rows older than `retention` are deleted, roll-ups are kept for good.
    pub fn start_ledger(&self, retention: Duration) -> Result<(Ledger, LedgerWriter), StoreError> {
        let book: Box<dyn ledger::Book> = match &self.backend {
            Backend::Sqlite(backend) => backend.open_book()?,
            Backend::Postgres(backend) => backend.open_book(),
        };
        ledger::start(book, retention)
    }

    /// Figures from the roll-ups; `None` if they are about a key that the viewer may not see.
    pub async fn usage(&self, viewer: &Viewer, query: &UsageQuery) -> Result<Option<UsageReport>, StoreError> {
        ask!(self, usage(viewer, query, now_millis()))
    }

    /// Sums by key alone.
    pub async fn usage_by_key(&self, viewer: &Viewer, period: Period) -> Result<Vec<KeyUsage>, StoreError> {
        ask!(self, usage_by_key(viewer, period))
    }

    /// The newest requests that were asked for, newest first.
    pub async fn requests(&self, viewer: &Viewer, query: &RequestQuery) -> Result<Vec<RequestRecord>, StoreError> {
        ask!(self, requests(viewer, query))
    }

    /// One request.
    pub async fn request(&self, viewer: &Viewer, id: RequestId) -> Result<Option<RequestRecord>, StoreError> {
        ask!(self, request(viewer, id))
    }

    /// How many accounts there are.
    pub async fn count_accounts(&self) -> Result<u64, StoreError> {
        ask!(self, count_accounts())
    }

    /// A link for making the first account, in place of all earlier ones; `None` once there is an account.
    pub async fn set_up(&self) -> Result<Option<Token>, StoreError> {
        ask!(self, set_up(now_millis()))
    }

    /// What a link is for; `None` if it does not work (any more).
    pub async fn link(&self, token: &Token) -> Result<Option<Link>, StoreError> {
        ask!(self, link(token, now_millis()))
    }

    /// Makes an account by a link, which then works no more.
    pub async fn use_link(&self, token: &Token, new: &NewAccount, address: &str) -> Result<AccountId, Declined> {
        ask!(self, use_link(token, new, address, now_millis()))
    }

    /// Gives an account another password by a link, which then works no more, and ends all its sessions.
    pub async fn reset_password(&self, token: &Token, password: &str, address: &str) -> Result<AccountId, Declined> {
        ask!(self, reset_password(token, password, address, now_millis()))
    }

    /// What is needed to check who signs in; `None` for an unknown or disabled account.
    pub async fn credentials(&self, email: &Email) -> Result<Option<Credentials>, StoreError> {
        ask!(self, credentials(email))
    }

    /// Begins a session for somebody whose password was checked; `None` if the account is gone or disabled.
    pub async fn begin_session(&self, account: AccountId, origin: &Origin) -> Result<Option<Begun>, StoreError> {
        ask!(self, begin_session(account, origin, now_millis()))
    }

    /// The session with that secret, if it has not ended; `address` is where it is used from.
    pub async fn session(&self, token: &Token, address: &str) -> Result<Option<Session>, StoreError> {
        ask!(self, session(token, address, now_millis()))
    }

    /// The viewer's own sessions, the last used first.
    pub async fn sessions(&self, viewer: &Viewer) -> Result<Vec<SessionRecord>, StoreError> {
        let Some(account) = viewer.id() else { return Ok(Vec::new()) };
        ask!(self, sessions(account, now_millis()))
    }

    /// Ends one of the viewer's sessions; `false` if there is no such session.
    pub async fn end_session(&self, viewer: &Viewer, session: SessionId) -> Result<bool, StoreError> {
        ask!(self, end_session(viewer, session, now_millis()))
    }

    /// Ends all the viewer's sessions but one; says how many.
    pub async fn end_other_sessions(&self, viewer: &Viewer, but: SessionId) -> Result<usize, StoreError> {
        ask!(self, end_other_sessions(viewer, but, now_millis()))
    }

    /// The hash of the viewer's own password.
    pub async fn password(&self, viewer: &Viewer) -> Result<Option<String>, StoreError> {
        let Some(account) = viewer.id() else { return Ok(None) };
        ask!(self, password(account))
    }

    /// Changes the viewer's own password, and ends all their sessions but one.
    pub async fn set_password(&self, viewer: &Viewer, but: SessionId, password: &str) -> Result<(), StoreError> {
        ask!(self, set_password(viewer, but, password, now_millis()))
    }

    /// Changes what the viewer is called.
    pub async fn set_own_name(&self, viewer: &Viewer, name: &str) -> Result<(), StoreError> {
        ask!(self, set_own_name(viewer, name, now_millis()))
    }

    /// Everyone's account.
    pub async fn accounts(&self, _admin: Admin<'_>) -> Result<Vec<Account>, StoreError> {
        ask!(self, accounts())
    }

    /// Makes a link by which somebody can make an account; `note` says for whom it is.
    pub async fn invite(&self, admin: Admin<'_>, role: Role, note: &str, life: Duration) -> Result<Token, StoreError> {
        ask!(self, invite(admin.0, role, note, life, now_millis()))
    }

    /// Makes a link by which somebody can choose another password.
    pub async fn reset_link(&self, admin: Admin<'_>, email: &Email) -> Result<Token, Declined> {
        ask!(self, reset_link(admin.0, email, now_millis()))
    }

    /// All links that still work, the newest last.
    pub async fn links(&self, _admin: Admin<'_>) -> Result<Vec<Link>, StoreError> {
        ask!(self, links(now_millis()))
    }

    /// Makes a link work no more; `false` if there is none.
    pub async fn withdraw(&self, admin: Admin<'_>, link: LinkId) -> Result<bool, StoreError> {
        ask!(self, withdraw(admin.0, link, now_millis()))
    }

    /// Gives an account another role.
    pub async fn set_role(&self, admin: Admin<'_>, of: AccountId, role: Role) -> Result<Account, Declined> {
        ask!(self, set_role(admin.0, of, role, now_millis()))
    }

    /// Disables an account, which ends its sessions, or enables it again. Its keys go on working.
    pub async fn set_disabled(&self, admin: Admin<'_>, of: AccountId, disabled: bool) -> Result<Account, Declined> {
        ask!(self, set_disabled(admin.0, of, disabled, now_millis()))
    }

    /// Lines of the audit log before a number, the newest first.
    pub async fn audit(&self, _admin: Admin<'_>, before: u64, limit: u32) -> Result<Vec<AuditRecord>, StoreError> {
        ask!(self, audit(before, limit))
    }

    /// Reads every page and says what is broken; empty if nothing is.
    pub async fn faults(&self) -> Result<Vec<String>, StoreError> {
        ask!(self, faults())
    }
}

/// Milliseconds since 1970 by the system's clock.
fn now_millis() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.unwrap_or_default().as_millis() as u64
}
