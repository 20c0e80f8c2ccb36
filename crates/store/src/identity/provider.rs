//! Sign-in through an identity provider. The first sign-in of a person creates an account, or takes over the account with
//! their address if the provider has verified it. The account may have been created by another person, because addresses
//! typed here are not verified. So its previous credentials stop working.

use chat::Timestamp;

use crate::audit::action::{AuditAction, AuditSubject, ProviderRefusal, SignInMethod};
use crate::database::sql::{Row, Transaction, params};
use crate::identity::accounts::{AccountError, NewAccount, find_account, insert_account, require_an_admin};
use crate::identity::challenges::forget_challenges;
use crate::identity::links::{LinksOf, withdraw_links};
use crate::identity::second_factors::forget_factors;
use crate::identity::sessions::{Origin, ProviderSession, StartedSession, insert_session};
use crate::values::{Account, AccountId, Admin, Email, PersonName, Role, Viewer};
use crate::{ProviderAccounts, StoreError};

/// A person who has signed in at the identity provider.
#[derive(Debug, Clone)]
pub struct ProvidedPerson {
    pub issuer: String,
    /// The provider's name for the person, which never changes.
    pub subject: String,
    pub email: Email,
    /// Whether the provider has verified the address; `None` if it does not say.
    pub is_email_verified: Option<bool>,
    pub name: PersonName,
    /// The role from the person's groups; `None` if roles are assigned here.
    pub role: Option<Role>,
    /// The provider's name for the session.
    pub session: Option<String>,
    /// When they authenticated at the provider.
    pub authenticated_at: Option<Timestamp>,
}

/// A deleted account whose person cannot sign in through the provider.
#[derive(Debug, Clone)]
pub struct DeletedPerson {
    pub account: AccountId,
    /// The account's former address.
    pub email: Email,
    pub deleted_at: Timestamp,
}

/// Why a person whom the provider has authenticated is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProvidedSignInError {
    #[error("the sign-in is refused: {0:?}")]
    Refused(ProviderRefusal),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ProviderRefusal> for ProvidedSignInError {
    fn from(refusal: ProviderRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl ProviderAccounts<'_> {
    pub async fn sign_in(
        self,
        person: &ProvidedPerson,
        origin: &Origin,
    ) -> Result<StartedSession, ProvidedSignInError> {
        self.change_without_viewer(async |transaction| {
            let account = match find_by_identity(transaction, person).await? {
                Some(known) => find_account(transaction, known).await?.ok_or(ProviderRefusal::Deleted)?,
                None => connect(transaction, person, origin).await?,
            };
            if account.disabled_at.is_some() {
                return Err(ProviderRefusal::Disabled.into());
            }
            let account = follow_role(transaction, account, person).await?;
            let provider =
                ProviderSession { issuer: &person.issuer, subject: &person.subject, id: person.session.as_deref() };
            let begun = insert_session(
                transaction,
                account,
                origin,
                SignInMethod::Provider,
                Some(provider),
                person.authenticated_at.map(|at| at.min(transaction.now())),
            )
            .await?;
            Ok(begun)
        })
        .await
    }

    /// Ends sessions at the provider's request: one by the provider's name for it, one of a person, or all of a person. A
    /// session without such a name may be the one that is meant, and ends as well. Returns the number of ended sessions.
    pub async fn end_sessions(
        self,
        issuer: &str,
        subject: Option<&str>,
        session: Option<&str>,
        address: &str,
    ) -> Result<u64, StoreError> {
        self.change_without_viewer(async |transaction| {
            let end = "DELETE FROM sessions WHERE issuer = $1 AND ($2 IS NULL OR subject = $2)
                AND ($3 IS NULL OR provider_session = $3 OR ($2 IS NOT NULL AND provider_session IS NULL))
                RETURNING subject";
            let read = |row: &Row<'_>| row.get::<String>(0);
            let ended = transaction.query(end, params![issuer, subject, session], read).await?;
            if let Some(subject) = ended.first() {
                let action = AuditAction::EndedSessions { count: ended.len() as u64 };
                transaction.audit_as(issuer, address, action, &AuditSubject::person_named(subject)).await?;
            }
            Ok(ended.len() as u64)
        })
        .await
    }

    /// Deleted people who cannot sign in through the provider, the last deleted first.
    pub async fn deleted_people(self, _admin: Admin<'_>) -> Result<Vec<DeletedPerson>, StoreError> {
        let list = "SELECT id, deleted_email, deleted_at FROM accounts WHERE deleted_email IS NOT NULL
            ORDER BY deleted_at DESC, id";
        let read =
            |row: &Row<'_>| Ok(DeletedPerson { account: row.get(0)?, email: row.get(1)?, deleted_at: row.get(2)? });
        self.connection().await?.query(list, &[], read).await
    }

    /// Lets a deleted person sign in through the provider again, to a new account.
    pub async fn allow_return(self, admin: Admin<'_>, of: AccountId) -> Result<Email, AccountError> {
        self.change(admin.0, async |transaction| {
            let find = "SELECT deleted_email FROM accounts WHERE id = $1 AND deleted_email IS NOT NULL";
            let email = transaction.query_optional(find, params![&of], |row| row.get::<Email>(0)).await?;
            let email = email.ok_or(AccountError::NoSuchAccount)?;
            let allow = "UPDATE accounts SET deleted_email = NULL WHERE id = $1";
            transaction.execute(allow, params![&of]).await?;
            transaction.execute("DELETE FROM identities WHERE account = $1", params![&of]).await?;
            transaction
                .audit(admin.0, AuditAction::AllowedReturn, &AuditSubject::person_with(of, email.as_str()))
                .await?;
            Ok(email)
        })
        .await
    }

    /// Deletes the connections of one account, or of all, to people of the provider: the next person who signs in with an
    /// account's verified address gets it. Ends the sessions from the provider. Returns the number of deleted connections,
    /// one per issuer.
    pub async fn disconnect(self, admin: Admin<'_>, of: Option<AccountId>) -> Result<u64, AccountError> {
        self.change(admin.0, async |transaction| {
            let subject = match of {
                Some(of) => {
                    AuditSubject::person(&find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?)
                }
                None => AuditSubject::everyone(),
            };
            let end = "DELETE FROM sessions WHERE issuer IS NOT NULL AND ($1 IS NULL OR account = $1)";
            transaction.execute(end, params![of.as_ref()]).await?;
            // Those of deleted people stay: they keep these people from signing in.
            let forget = "DELETE FROM identities WHERE account = $1
                OR ($1 IS NULL AND account IN (SELECT id FROM accounts WHERE deleted_at IS NULL))";
            let forgotten = transaction.execute(forget, params![of.as_ref()]).await?;
            transaction.audit(admin.0, AuditAction::DisconnectedFromProvider, &subject).await?;
            Ok(forgotten)
        })
        .await
    }
}

async fn find_by_identity(
    transaction: &mut Transaction<'_>,
    person: &ProvidedPerson,
) -> Result<Option<AccountId>, StoreError> {
    let find = "SELECT account FROM identities WHERE issuer = $1 AND subject = $2";
    let (issuer, subject) = (person.issuer.as_str(), person.subject.as_str());
    transaction.query_optional(find, params![issuer, subject], |row| row.get(0)).await
}

/// Connects the person to the account with their address, or to a new one.
async fn connect(
    transaction: &mut Transaction<'_>,
    person: &ProvidedPerson,
    origin: &Origin,
) -> Result<Account, ProvidedSignInError> {
    let (email, now) = (person.email.as_str(), transaction.now());
    let find = "SELECT id FROM accounts WHERE email = $1 AND deleted_at IS NULL";
    let known: Option<AccountId> = transaction.query_optional(find, params![email], |row| row.get(0)).await?;
    let issuer = person.issuer.clone();
    let (account, action) = match known {
        Some(_) if person.is_email_verified != Some(true) => return Err(ProviderRefusal::EmailTaken.into()),
        Some(account) => {
            let others = "SELECT EXISTS (SELECT 1 FROM identities WHERE account = $1 AND issuer = $2)";
            if transaction.query_value(others, params![&account, person.issuer.as_str()]).await? {
                return Err(ProviderRefusal::ConnectedElsewhere.into());
            }
            forget_own_sign_in(transaction, account).await?;
            (account, AuditAction::ConnectedToProvider { issuer })
        }
        None if person.is_email_verified == Some(false) => return Err(ProviderRefusal::UnverifiedEmail.into()),
        None => {
            let deleted = "SELECT EXISTS (SELECT 1 FROM accounts WHERE deleted_email = $1)";
            if transaction.query_value(deleted, params![email]).await? {
                return Err(ProviderRefusal::Deleted.into());
            }
            let role = person.role.unwrap_or(Role::Developer);
            // An empty hash matches no password.
            let new = NewAccount { email: person.email.clone(), name: person.name.clone(), password: String::new() };
            let account = insert_account(transaction, &new, role).await.map_err(|error| match error {
                AccountError::Store(error) => error,
                _ => StoreError::Corrupt("e-mail address"),
            })?;
            (account, AuditAction::JoinedByProvider { issuer })
        }
    };
    let connect = "INSERT INTO identities (issuer, subject, account, created_at) VALUES ($1, $2, $3, $4)";
    let values = params![person.issuer.as_str(), person.subject.as_str(), &account, now];
    transaction.execute(connect, values).await?;
    transaction.audit_as(email, &origin.address, action, &AuditSubject::person_with(account, email)).await?;
    Ok(find_account(transaction, account).await?.ok_or(StoreError::Corrupt("account"))?)
}

/// Removes the account's password, second factors, sessions and links. Its keys stay.
async fn forget_own_sign_in(transaction: &mut Transaction<'_>, account: AccountId) -> Result<(), StoreError> {
    transaction.execute("UPDATE accounts SET password = '' WHERE id = $1", params![&account]).await?;
    transaction.execute("DELETE FROM links WHERE account = $1", params![&account]).await?;
    transaction.execute("DELETE FROM sessions WHERE account = $1", params![&account]).await?;
    forget_challenges(transaction, account).await?;
    forget_factors(transaction, account).await
}

/// Applies the role from the provider's groups. The last administrator keeps theirs, because no one could undo that.
async fn follow_role(
    transaction: &mut Transaction<'_>,
    account: Account,
    person: &ProvidedPerson,
) -> Result<Account, StoreError> {
    let Some(role) = person.role.filter(|role| *role != account.role) else { return Ok(account) };
    let set = "UPDATE accounts SET role = $2 WHERE id = $1";
    transaction.execute(set, params![&account.id, role.as_str()]).await?;
    match require_an_admin(transaction).await {
        Ok(()) => {}
        Err(AccountError::Store(error)) => return Err(error),
        Err(_) => {
            transaction.execute(set, params![&account.id, account.role.as_str()]).await?;
            return Ok(account);
        }
    }
    let subject = AuditSubject::person(&account);
    transaction.audit_as(&person.issuer, "", AuditAction::GaveRole { role }, &subject).await?;
    // Sessions with the previous role end, as they do when an administrator changes a role.
    transaction.execute("DELETE FROM sessions WHERE account = $1", params![&account.id]).await?;
    if role != Role::Admin {
        let operator = Viewer::operator();
        withdraw_links(transaction, Admin(&operator), LinksOf::Maker(&account)).await?;
    }
    Ok(Account { role, ..account })
}
