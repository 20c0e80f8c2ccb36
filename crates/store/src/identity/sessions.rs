//! Sessions of people who have signed in, stored by the digest of their secret.

use std::time::Duration;

use chat::Timestamp;

use crate::audit::action::{AuditAction, AuditSubject, SignInMethod, named};
use crate::database::Base;
use crate::database::sql::{Connection, Row, Transaction, params};
use crate::identity::accounts::{ACCOUNT_COLUMNS, account, find_account};
use crate::identity::challenges::{ChallengePurpose, take_challenge};
use crate::identity::second_factors::{HAS_SECOND_FACTOR, IS_REQUIRED, SecondFactorCode, UsedPasskey};
use crate::values::{Account, AccountId, Admin, Email, SessionId, Token, Viewer};
use crate::{Sessions, StoreError};

const SESSION_LIFETIME: Duration = Duration::from_secs(30 * 86_400);
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(7 * 86_400);
/// `seen_at` is updated only when it is off by more than this.
const SEEN_AT_PRECISION: Duration = Duration::from_secs(60);

/// Where a session was begun, so that its owner can recognise it.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The network address.
    pub address: String,
    /// The browser's `User-Agent`.
    pub agent: String,
}

/// What was verified before a session begins. The session's transaction checks that it is still valid.
#[derive(Clone, Copy)]
pub enum Proof<'a> {
    /// The stored hash of the password, of an account without a second factor.
    Password(&'a str),
    /// The challenge of a verified password, and a code.
    Code {
        challenge: &'a Token,
        code: SecondFactorCode<'a>,
    },
    Passkey(&'a UsedPasskey),
}

/// Why a session does not begin.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    /// The account was disabled, or its password or factors have changed, since they were verified.
    #[error("the verified credentials are no longer valid")]
    Outdated,
    #[error("the code is wrong, or was used before")]
    WrongCode,
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub struct Session {
    pub id: SessionId,
    pub viewer: Viewer,
    pub method: SignInMethod,
    /// A second factor is required, and this person has none.
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
    pub method: SignInMethod,
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

impl Sessions<'_> {
    /// Begins a session for a person whose password, code or passkey was verified.
    pub async fn begin(
        self,
        account: AccountId,
        origin: &Origin,
        proof: Proof<'_>,
    ) -> Result<StartedSession, SignInError> {
        self.change_without_viewer(async |transaction| {
            let found = find_account(transaction, account).await?;
            let found = found.filter(|found| found.disabled_at.is_none()).ok_or(SignInError::Outdated)?;
            let method = proof.require(transaction, &found, origin).await?;
            let confirmed_at = proof.confirms().then_some(transaction.now());
            Ok(insert_session(transaction, found, origin, method, None, confirmed_at).await?)
        })
        .await
    }

    /// The session with this secret, unless it has ended; `address` is the client's current address.
    pub async fn find(self, token: &Token, address: &str) -> Result<Option<Session>, StoreError> {
        let find = format!(
            "SELECT {ACCOUNT_COLUMNS}, sessions.id, seen_at, method, ({IS_REQUIRED}) AND NOT ({HAS_SECOND_FACTOR})
             FROM sessions JOIN accounts ON accounts.id = account
             WHERE digest = $1 AND disabled_at IS NULL AND sessions.created_at >= $2 AND seen_at >= $3"
        );
        let (digest, now) = (token.digest(), self.now());
        let [began, seen] = oldest_valid(now);
        let mut connection = self.connection().await?;
        let read = |row: &Row<'_>| {
            let method: SignInMethod = named(&row.get::<String>(9)?, "sign-in method")?;
            let id = row.get(7)?;
            let session = Session {
                id,
                viewer: Viewer::signed_in(account(row)?, id, address),
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

    /// Whether the viewer's session and role are still those of when the request began; for long reads.
    pub async fn is_valid(self, viewer: &Viewer) -> Result<bool, StoreError> {
        match require_valid(&mut self.connection().await?, viewer, self.now()).await {
            Ok(()) => Ok(true),
            Err(StoreError::SessionEnded) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The viewer's own sessions, the last used first.
    pub async fn list(self, viewer: &Viewer) -> Result<Vec<SessionRecord>, StoreError> {
        match viewer.id() {
            Some(account) => self.list_sessions(account).await,
            None => Ok(Vec::new()),
        }
    }

    /// The sessions of a person, the last used first.
    pub async fn list_of(self, _admin: Admin<'_>, of: AccountId) -> Result<Vec<SessionRecord>, StoreError> {
        self.list_sessions(of).await
    }

    async fn list_sessions(self, account: AccountId) -> Result<Vec<SessionRecord>, StoreError> {
        let list = "SELECT id, address, agent, created_at, seen_at, method FROM sessions
            WHERE account = $1 AND created_at >= $2 AND seen_at >= $3 ORDER BY seen_at DESC, id";
        let [began, seen] = oldest_valid(self.now());
        let record = |row: &Row<'_>| {
            Ok(SessionRecord {
                id: row.get(0)?,
                origin: Origin { address: row.get(1)?, agent: row.get(2)? },
                created_at: row.get(3)?,
                seen_at: row.get(4)?,
                method: named(&row.get::<String>(5)?, "sign-in method")?,
            })
        };
        self.connection().await?.query(list, params![&account, began, seen], record).await
    }

    /// The addresses from which the sessions of an account were begun.
    pub async fn addresses(self, email: &Email) -> Result<Vec<String>, StoreError> {
        let list = "SELECT DISTINCT address FROM sessions JOIN accounts ON accounts.id = account WHERE email = $1";
        self.connection().await?.query(list, params![email.as_str()], |row| row.get(0)).await
    }

    /// `false` if the viewer has no such session.
    pub async fn end(self, viewer: &Viewer, session: SessionId) -> Result<bool, StoreError> {
        let Some(owner) = viewer.id() else { return Ok(false) };
        self.change(viewer, async |transaction| {
            let end = "DELETE FROM sessions WHERE id = $1 AND account = $2";
            let ended = transaction.execute(end, params![&session, &owner]).await? > 0;
            if ended {
                transaction.audit(viewer, AuditAction::EndedSession, &AuditSubject::session(session)).await?;
            }
            Ok(ended)
        })
        .await
    }

    /// Ends all of the viewer's sessions except `but`; returns their number.
    pub async fn end_others(self, viewer: &Viewer, except: SessionId) -> Result<usize, StoreError> {
        let Some(owner) = viewer.id() else { return Ok(0) };
        self.change(viewer, async |transaction| {
            let end = "DELETE FROM sessions WHERE id <> $1 AND account = $2";
            let ended = transaction.execute(end, params![&except, &owner]).await?;
            transaction
                .audit(viewer, AuditAction::EndedOtherSessions { count: ended }, &AuditSubject::viewer(viewer))
                .await?;
            Ok(ended as usize)
        })
        .await
    }
}

impl Base {
    /// Makes a change for a viewer, in one transaction, which first checks that the viewer is still valid.
    pub(crate) async fn change<T, E: From<StoreError>>(
        &self,
        viewer: &Viewer,
        change: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.change_without_viewer(async |transaction| {
            let now = transaction.now();
            require_valid(transaction, viewer, now).await?;
            change(transaction).await
        })
        .await
    }
}

/// Declines a request whose session has ended, or whose account was disabled, deleted or given another role since the
/// request began. The operator at the command line has no session.
pub(crate) async fn require_valid(
    connection: &mut Connection<'_>,
    viewer: &Viewer,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some((account, session)) = viewer.session() else { return Ok(()) };
    let is_valid = "SELECT EXISTS (SELECT 1 FROM sessions JOIN accounts ON accounts.id = account
        WHERE sessions.id = $1 AND account = $2 AND role = $3 AND disabled_at IS NULL AND deleted_at IS NULL
            AND sessions.created_at >= $4 AND seen_at >= $5)";
    let [began, seen] = oldest_valid(now);
    let values = params![session, &account.id, account.role.as_str(), began, seen];
    if connection.query_value(is_valid, values).await? { Ok(()) } else { Err(StoreError::SessionEnded) }
}

impl Proof<'_> {
    /// Whether it also counts as a confirmation. A recovery code does not: it may have been stolen.
    fn confirms(self) -> bool {
        !matches!(self, Self::Code { code: SecondFactorCode::Recovery(_), .. })
    }

    /// Checks the proof in the transaction, and uses up challenges and codes.
    async fn require(
        self,
        transaction: &mut Transaction<'_>,
        account: &Account,
        origin: &Origin,
    ) -> Result<SignInMethod, SignInError> {
        let outdated = |holds: bool| if holds { Ok(()) } else { Err(SignInError::Outdated) };
        match self {
            Self::Password(hash) => {
                let unchanged = format!(
                    "SELECT EXISTS (SELECT 1 FROM accounts WHERE id = $1 AND password = $2 AND NOT ({HAS_SECOND_FACTOR}))"
                );
                outdated(transaction.query_value(&unchanged, params![&account.id, hash]).await?)?;
                Ok(SignInMethod::Password)
            }
            Self::Code { challenge, code } => {
                let taken = take_challenge(transaction, ChallengePurpose::SecondFactor, challenge).await?;
                outdated(taken.is_some_and(|taken| taken.account == account.id))?;
                match code.use_up(transaction, account, &origin.address).await? {
                    true => Ok(SignInMethod::Password),
                    false => Err(SignInError::WrongCode),
                }
            }
            Self::Passkey(used) => {
                outdated(used.record(transaction, account.id).await?)?;
                Ok(SignInMethod::Passkey)
            }
        }
    }
}

/// Inserts a session. The caller has checked, in this transaction, that the account may have one.
pub(crate) async fn insert_session(
    transaction: &mut Transaction<'_>,
    account: Account,
    origin: &Origin,
    method: SignInMethod,
    provider: Option<ProviderSession<'_>>,
    confirmed_at: Option<Timestamp>,
) -> Result<StartedSession, StoreError> {
    let (token, id, now) = (Token::generate()?, SessionId::generate()?, transaction.now());
    let insert = "INSERT INTO sessions (digest, id, account, address, agent, created_at, seen_at, method, issuer,
            subject, provider_session, confirmed_at)
        VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9, $10, $11)";
    let (address, agent) = (origin.address.as_str(), origin.agent.as_str());
    let (issuer, subject) = (provider.map(|provider| provider.issuer), provider.map(|provider| provider.subject));
    let provider_session = provider.and_then(|provider| provider.id);
    let (digest, word) = (token.digest(), method.to_string());
    let values = params![
        &digest, &id, &account.id, address, agent, now, &*word, issuer, subject, provider_session, confirmed_at
    ];
    transaction.execute(insert, values).await?;
    let signed_in = "UPDATE accounts SET signed_in_at = $2 WHERE id = $1";
    transaction.execute(signed_in, params![&account.id, now]).await?;
    let action = AuditAction::SignedIn { method, issuer: issuer.map(str::to_owned) };
    transaction.audit_as(account.email.as_str(), address, action, &AuditSubject::person(&account)).await?;
    let lacks = format!("SELECT ({IS_REQUIRED}) AND NOT ({HAS_SECOND_FACTOR}) FROM accounts WHERE id = $1");
    let lacks_second_factor =
        method != SignInMethod::Provider && transaction.query_value(&lacks, params![&account.id]).await?;
    let viewer = Viewer::signed_in(account, id, address);
    Ok(StartedSession { token, session: Session { id, viewer, method, lacks_second_factor } })
}

/// Sessions that are no longer valid, by `oldest_valid`. The ledger runs this, with a time that two clocks confirm.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM sessions WHERE created_at < $1 OR seen_at < $2";

/// The oldest `created_at` and `seen_at` of a session that is still valid.
pub(crate) fn oldest_valid(now: Timestamp) -> [Timestamp; 2] {
    [now.saturating_sub(SESSION_LIFETIME), now.saturating_sub(SESSION_IDLE_TIMEOUT)]
}
