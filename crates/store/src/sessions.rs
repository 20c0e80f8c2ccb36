//! Sessions of people who have signed in, stored by the digest of their secret.

use std::time::Duration;

use chat::Timestamp;

use crate::accounts::{ACCOUNT_COLUMNS, Account, Email, account, find_account};
use crate::id::{AccountId, SessionId};
use crate::second_factors::{HAS_SECOND_FACTOR, IS_REQUIRED};
use crate::sql::{Row, Transaction, params};
use crate::token::Token;
use crate::viewer::Viewer;
use crate::{Store, StoreError};

const SESSION_LIFETIME: Duration = Duration::from_secs(30 * 86_400);
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(7 * 86_400);
/// `seen_at` is updated only when it is off by more than this.
const SEEN_AT_PRECISION: Duration = Duration::from_secs(60);

/// Where a session comes from, for its owner to recognise.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The network address.
    pub address: String,
    /// The browser's `User-Agent`.
    pub agent: String,
}

/// How somebody proved who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignInMethod {
    Password,
    Passkey,
    /// The identity provider vouches for them.
    Provider,
}

impl SignInMethod {
    fn as_str(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Passkey => "passkey",
            Self::Provider => "provider",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        let all = [Self::Password, Self::Passkey, Self::Provider];
        all.into_iter().find(|method| method.as_str() == text).ok_or(StoreError::Corrupt("sign-in method"))
    }
}

pub struct Session {
    pub id: SessionId,
    pub viewer: Viewer,
    pub method: SignInMethod,
    /// A second factor is required, and this person has none yet.
    pub lacks_second_factor: bool,
}

/// A session at the identity provider.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProviderSession<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) subject: &'a str,
    /// The provider's name for the session.
    pub(crate) id: Option<&'a str>,
}

#[derive(Debug, Clone)]
pub struct SessionRecord {
    pub id: SessionId,
    pub origin: Origin,
    pub created_at: Timestamp,
    /// Last use, to the minute.
    pub seen_at: Timestamp,
}

pub struct StartedSession {
    /// The secret, for the cookie.
    pub token: Token,
    pub session: Session,
}

impl Store {
    /// For somebody whose password or passkey was checked; `None` if the account is gone or disabled.
    pub async fn begin_session(
        &self,
        account: AccountId,
        origin: &Origin,
        method: SignInMethod,
    ) -> Result<Option<StartedSession>, StoreError> {
        self.change(async |transaction| {
            let found = find_account(transaction, account).await?;
            let Some(found) = found.filter(|found| found.disabled_at.is_none()) else { return Ok(None) };
            insert_session(transaction, found, origin, method, None).await.map(Some)
        })
        .await
    }

    /// The session with that secret, unless it has ended; `address` is where it is used from now.
    pub async fn session(&self, token: &Token, address: &str) -> Result<Option<Session>, StoreError> {
        let find = format!(
            "SELECT {ACCOUNT_COLUMNS}, sessions.id, seen_at, method, ({IS_REQUIRED}) AND NOT ({HAS_SECOND_FACTOR})
             FROM sessions JOIN accounts ON accounts.id = account
             WHERE digest = $1 AND disabled_at IS NULL AND sessions.created_at >= $2 AND seen_at >= $3"
        );
        let (digest, now) = (token.digest(), self.now());
        let [began, seen] = oldest_valid(now);
        let mut connection = self.connection().await?;
        let read = |row: &Row<'_>| {
            let method = SignInMethod::parse(&row.get::<String>(9)?)?;
            let session = Session {
                id: row.get(7)?,
                viewer: Viewer::signed_in(account(row)?, address),
                method,
                lacks_second_factor: method != SignInMethod::Provider && row.get(10)?,
            };
            Ok((session, row.get::<Timestamp>(8)?))
        };
        let found = connection.query_optional(&find, params![&digest, began, seen], read).await?;
        let Some((session, seen_at)) = found else { return Ok(None) };
        if seen_at + SEEN_AT_PRECISION < now {
            let update = "UPDATE sessions SET seen_at = $2 WHERE digest = $1";
            connection.execute(update, params![&digest, now]).await?;
        }
        Ok(Some(session))
    }

    /// The viewer's own sessions, the last used first.
    pub async fn sessions(&self, viewer: &Viewer) -> Result<Vec<SessionRecord>, StoreError> {
        let Some(account) = viewer.id() else { return Ok(Vec::new()) };
        let list = "SELECT id, address, agent, created_at, seen_at FROM sessions
            WHERE account = $1 AND created_at >= $2 AND seen_at >= $3 ORDER BY seen_at DESC, id";
        let [began, seen] = oldest_valid(self.now());
        let record = |row: &Row<'_>| {
            Ok(SessionRecord {
                id: row.get(0)?,
                origin: Origin { address: row.get(1)?, agent: row.get(2)? },
                created_at: row.get(3)?,
                seen_at: row.get(4)?,
            })
        };
        self.connection().await?.query(list, params![&account, began, seen], record).await
    }

    /// Where the sessions of an account were begun.
    pub async fn session_addresses(&self, email: &Email) -> Result<Vec<String>, StoreError> {
        let list = "SELECT DISTINCT address FROM sessions JOIN accounts ON accounts.id = account WHERE email = $1";
        self.connection().await?.query(list, params![email.as_str()], |row| row.get(0)).await
    }

    /// `false` if the viewer has no such session.
    pub async fn end_session(&self, viewer: &Viewer, session: SessionId) -> Result<bool, StoreError> {
        let Some(owner) = viewer.id() else { return Ok(false) };
        self.change(async |transaction| {
            let end = "DELETE FROM sessions WHERE id = $1 AND account = $2";
            let ended = transaction.execute(end, params![&session, &owner]).await? > 0;
            if ended {
                transaction.audit(viewer, "ended the session", session.as_str()).await?;
            }
            Ok(ended)
        })
        .await
    }

    /// Ends all the viewer's sessions except one, and returns how many.
    pub async fn end_other_sessions(&self, viewer: &Viewer, but: SessionId) -> Result<usize, StoreError> {
        let Some(owner) = viewer.id() else { return Ok(0) };
        self.change(async |transaction| {
            let end = "DELETE FROM sessions WHERE id <> $1 AND account = $2";
            let ended = transaction.execute(end, params![&but, &owner]).await?;
            transaction.audit(viewer, "ended all other sessions", &ended.to_string()).await?;
            Ok(ended as usize)
        })
        .await
    }
}

/// A new session. Only `transaction` knows whether the account may have one.
pub(crate) async fn insert_session(
    transaction: &mut Transaction<'_>,
    account: Account,
    origin: &Origin,
    method: SignInMethod,
    provider: Option<ProviderSession<'_>>,
) -> Result<StartedSession, StoreError> {
    let (token, id, now) = (Token::generate()?, SessionId::generate()?, transaction.now());
    let insert = "INSERT INTO sessions (digest, id, account, address, agent, created_at, seen_at, method, issuer,
            subject, provider_session)
        VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9, $10)";
    let (address, agent, email) = (origin.address.as_str(), origin.agent.as_str(), account.email.as_str());
    let (issuer, subject) = (provider.map(|provider| provider.issuer), provider.map(|provider| provider.subject));
    let provider_session = provider.and_then(|provider| provider.id);
    let (digest, word) = (token.digest(), method.as_str());
    let values = params![&digest, &id, &account.id, address, agent, now, word, issuer, subject, provider_session];
    transaction.execute(insert, values).await?;
    let signed_in = "UPDATE accounts SET signed_in_at = $2 WHERE id = $1";
    transaction.execute(signed_in, params![&account.id, now]).await?;
    let what = match method {
        SignInMethod::Password => "signed in".to_owned(),
        SignInMethod::Passkey => "signed in with a passkey".to_owned(),
        SignInMethod::Provider => format!("signed in by {}", issuer.unwrap_or_default()),
    };
    transaction.audit_as(email, address, &what, email).await?;
    let lacks = format!("SELECT ({IS_REQUIRED}) AND NOT ({HAS_SECOND_FACTOR}) FROM accounts WHERE id = $1");
    let lacks_second_factor =
        method != SignInMethod::Provider && transaction.query_value(&lacks, params![&account.id]).await?;
    let viewer = Viewer::signed_in(account, address);
    Ok(StartedSession { token, session: Session { id, viewer, method, lacks_second_factor } })
}

/// Sessions that are no longer valid, by `oldest_valid`. Run by the ledger: nothing is deleted on the word of one clock.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM sessions WHERE created_at < $1 OR seen_at < $2";

/// The oldest `created_at` and `seen_at` of a session that is still valid.
pub(crate) fn oldest_valid(now: Timestamp) -> [Timestamp; 2] {
    [now.saturating_sub(SESSION_LIFETIME), now.saturating_sub(SESSION_IDLE_TIMEOUT)]
}
