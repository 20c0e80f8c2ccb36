//! Accounts of people, their sessions, and the links by which they get in. Passwords come here hashed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::id::{AccountId, LinkId, SessionId};
use crate::token::Token;
use crate::viewer::{Role, Viewer};

/// How long a session lasts at the most, and how long without being used, in milliseconds.
pub(crate) const SESSION_LIFE: u64 = 30 * 86_400_000;
pub(crate) const SESSION_IDLE: u64 = 7 * 86_400_000;
/// A session's last use is written down when it is off by so many milliseconds.
pub(crate) const SEEN_EVERY: u64 = 60_000;
/// How long a link can be used for resetting a password or setting up.
pub(crate) const LINK_LIFE: Duration = Duration::from_secs(86_400);

/// An e-mail address as accounts have it: trimmed, in lower case, and plausible.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Email(String);

impl Email {
    /// The address.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As it stands in the database.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Email {
    type Err = NotAnEmail;

    fn from_str(text: &str) -> Result<Self, NotAnEmail> {
        let text = text.trim().to_lowercase();
        let plausible = text.len() <= 254
            && !text.chars().any(|character| character.is_whitespace() || character.is_control())
            && text.split_once('@').is_some_and(|(name, host)| {
                !name.is_empty() && !host.is_empty() && !host.contains('@') && !host.starts_with('.')
            });
        if plausible { Ok(Self(text)) } else { Err(NotAnEmail) }
    }
}

/// Not an e-mail address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("that is not an e-mail address")]
pub struct NotAnEmail;

/// A person's account. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The public id.
    pub id: AccountId,
    /// Who signs in.
    pub email: Email,
    /// What the person is called.
    pub name: String,
    /// What the person may do.
    pub role: Role,
    /// When it was made.
    pub created_at: u64,
    /// When it was last signed in with.
    pub signed_in_at: Option<u64>,
    /// Since when it cannot be used.
    pub disabled_at: Option<u64>,
}

/// An account to be made.
#[derive(Debug, Clone)]
pub struct NewAccount {
    /// Who signs in.
    pub email: Email,
    /// What the person is called.
    pub name: String,
    /// The password's hash, as `argon2` writes it.
    pub password: String,
}

/// What is needed to check a password.
pub struct Credentials {
    /// Whose they are.
    pub account: AccountId,
    /// The password's hash.
    pub password: String,
}

/// Where somebody signs in from, as shown to them later.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The network address.
    pub address: String,
    /// What the browser calls itself.
    pub agent: String,
}

/// A session that was just begun or found.
pub struct Session {
    /// Its public id.
    pub id: SessionId,
    /// Who it belongs to.
    pub viewer: Viewer,
}

/// A session as it is listed. Times are milliseconds since 1970.
#[derive(Debug, Clone)]
pub struct SessionRecord {
    /// Its public id.
    pub id: SessionId,
    /// Where from.
    pub origin: Origin,
    /// When it began.
    pub created_at: u64,
    /// When it was last used, to the minute.
    pub seen_at: u64,
}

/// What a link lets its holder do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkFor {
    /// Make the first account, an administrator.
    SetUp,
    /// Make an account with that role.
    Join(Role),
    /// Give that account another password.
    Reset(Email),
}

/// A link that has not been used and has not expired.
#[derive(Debug, Clone)]
pub struct Link {
    /// Its public id.
    pub id: LinkId,
    /// What it is for.
    pub purpose: LinkFor,
    /// Whom it was made for, if that was said.
    pub note: String,
    /// Who made it.
    pub made_by: String,
    /// When, in milliseconds since 1970.
    pub created_at: u64,
    /// Until when it works, in milliseconds since 1970.
    pub expires_at: u64,
}

/// Why a change of accounts was not made.
#[derive(Debug, thiserror::Error)]
pub enum Declined {
    /// Used, expired, withdrawn or never there.
    #[error("this link has been used, has expired or was withdrawn")]
    LinkGone,
    /// One address, one account.
    #[error("there is an account with this e-mail address already")]
    EmailTaken,
    /// Not there, or not to be seen by the viewer.
    #[error("there is no such account")]
    NoSuchAccount,
    /// Nobody could undo it.
    #[error("the last administrator cannot be demoted or disabled")]
    LastAdmin,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] crate::StoreError),
}

impl From<rusqlite::Error> for Declined {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<tokio_postgres::Error> for Declined {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<getrandom::Error> for Declined {
    fn from(error: getrandom::Error) -> Self {
        Self::Store(error.into())
    }
}

/// One line of the audit log.
#[derive(Debug, Clone)]
pub struct AuditRecord {
    /// Its number; later ones are larger.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// Who: an e-mail address, or `operator` for the command line.
    pub who: String,
    /// From where: a network address, or `command line`.
    pub address: String,
    /// What was done.
    pub what: String,
    /// To what.
    pub subject: String,
}

/// A new session's secret and the session itself.
pub struct Begun {
    /// For the cookie.
    pub token: Token,
    /// The session.
    pub session: Session,
}
