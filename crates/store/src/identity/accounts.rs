//! Accounts of people. Passwords arrive here hashed.

use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::sql::{Connection, Row, Transaction, params};
use crate::identity::challenges::forget_challenges;
use crate::identity::confirmations::{require_another, require_confirmed};
use crate::identity::links::{LinksOf, withdraw_links};
use crate::identity::second_factors::HAS_SECOND_FACTOR;
use crate::values::{Account, AccountId, Admin, Email, PersonName, Role, SessionId, Viewer};
use crate::{Accounts, StoreError};

#[derive(Debug, Clone)]
pub struct NewAccount {
    pub email: Email,
    pub name: PersonName,
    /// The hash in `argon2`'s format.
    pub password: String,
}

/// The outcome of a change of role or access.
#[derive(Debug, Clone)]
pub struct AccountChange {
    pub account: Account,
    pub revoked_keys: u64,
    /// Open links that were withdrawn.
    pub withdrawn_links: usize,
}

pub struct Credentials {
    pub account: AccountId,
    /// The hash.
    pub password: String,
    /// The password alone is not enough.
    pub has_second_factor: bool,
}

/// Why a change was declined.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// Used, expired, withdrawn, or never created.
    #[error("this link has been used, has expired or was withdrawn")]
    LinkGone,
    #[error("there is an account with this e-mail address already")]
    EmailTaken,
    /// There is none, or the viewer may not see it.
    #[error("there is no such account")]
    NoSuchAccount,
    /// No one could undo that.
    #[error("the last administrator cannot be demoted, disabled or deleted")]
    LastAdmin,
    #[error("this is done on your own account page")]
    OwnAccount,
    #[error("only administrators can do this")]
    NotAdmin,
    #[error("an administrator has restricted this key, and only an administrator can lift that")]
    SetByAdmin,
    #[error("a person can have at most {0} active keys; revoke one that is not needed")]
    TooManyKeys(u64),
    #[error(transparent)]
    Store(#[from] crate::StoreError),
}

impl Accounts<'_> {
    pub async fn count(self) -> Result<u64, StoreError> {
        self.connection().await?.query_value("SELECT count(*) FROM accounts WHERE deleted_at IS NULL", &[]).await
    }

    /// `None` for an account that is unknown, disabled or without a password.
    pub async fn credentials(self, email: &Email) -> Result<Option<Credentials>, StoreError> {
        let find = format!(
            "SELECT id, password, {HAS_SECOND_FACTOR} FROM accounts
             WHERE email = $1 AND disabled_at IS NULL AND password <> ''"
        );
        let read = |row: &Row<'_>| {
            Ok(Credentials { account: row.get(0)?, password: row.get(1)?, has_second_factor: row.get(2)? })
        };
        self.connection().await?.query_optional(&find, params![email.as_str()], read).await
    }

    /// The hash of the viewer's own password; `None` for people who sign in at the identity provider.
    pub async fn password(self, viewer: &Viewer) -> Result<Option<String>, StoreError> {
        let Some(account) = viewer.id() else { return Ok(None) };
        let find = "SELECT password FROM accounts WHERE id = $1 AND password <> ''";
        self.connection().await?.query_optional(find, params![&account], |row| row.get(0)).await
    }

    /// Changes the viewer's own password, and ends all their sessions except `but`. `false` if the password has changed
    /// since it was verified.
    pub async fn set_password(
        self,
        viewer: &Viewer,
        except: SessionId,
        verified: &str,
        password: &str,
    ) -> Result<bool, StoreError> {
        let Some(account) = viewer.id() else { return Ok(false) };
        self.change(viewer, async |transaction| {
            let set = "UPDATE accounts SET password = $3 WHERE id = $1 AND password = $2";
            if transaction.execute(set, params![&account, verified, password]).await? == 0 {
                return Ok(false);
            }
            let end = "DELETE FROM sessions WHERE account = $1 AND id <> $2";
            transaction.execute(end, params![&account, &except]).await?;
            forget_challenges(transaction, account).await?;
            transaction.audit(viewer, AuditAction::ChangedPassword, &AuditSubject::viewer(viewer)).await?;
            Ok(true)
        })
        .await
    }

    /// Changes the viewer's display name.
    pub async fn set_own_name(self, viewer: &Viewer, name: &PersonName) -> Result<(), StoreError> {
        let Some(account) = viewer.id() else { return Ok(()) };
        self.change(viewer, async |transaction| {
            let set = "UPDATE accounts SET name = $2 WHERE id = $1";
            transaction.execute(set, params![&account, name.as_str()]).await?;
            let action = AuditAction::ChangedOwnName { name: name.as_str().to_owned() };
            transaction.audit(viewer, action, &AuditSubject::viewer(viewer)).await
        })
        .await
    }

    pub async fn list(self, _admin: Admin<'_>) -> Result<Vec<Account>, StoreError> {
        let list = format!("SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE deleted_at IS NULL ORDER BY created_at, id");
        self.connection().await?.query(&list, &[], account).await
    }

    /// Ends the person's sessions. A person who is no longer an administrator loses the links that they created.
    pub async fn set_role(self, admin: Admin<'_>, of: AccountId, role: Role) -> Result<AccountChange, AccountError> {
        self.change(admin.0, async |transaction| {
            require_another(admin.0, of)?;
            require_confirmed(transaction, admin.0).await?;
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            let set = "UPDATE accounts SET role = $2 WHERE id = $1";
            transaction.execute(set, params![&of, role.as_str()]).await?;
            require_an_admin(transaction).await?;
            if role != found.role {
                transaction.execute("DELETE FROM sessions WHERE account = $1", params![&of]).await?;
            }
            transaction.audit(admin.0, AuditAction::GaveRole { role }, &AuditSubject::person(&found)).await?;
            let withdrawn_links = match role {
                Role::Admin => 0,
                Role::Developer => withdraw_links(transaction, admin, LinksOf::Maker(&found)).await?,
            };
            Ok(AccountChange { account: Account { role, ..found }, revoked_keys: 0, withdrawn_links })
        })
        .await
    }
}

/// The columns that `account` reads.
pub(crate) const ACCOUNT_COLUMNS: &str =
    "accounts.id, email, accounts.name, role, accounts.created_at, signed_in_at, disabled_at";

/// Reads an account from the first columns of a row.
pub(crate) fn account(row: &Row<'_>) -> Result<Account, StoreError> {
    Ok(Account {
        id: row.get(0)?,
        email: row.get(1)?,
        name: row.get(2)?,
        role: row.get(3)?,
        created_at: row.get(4)?,
        signed_in_at: row.get_optional(5)?,
        disabled_at: row.get_optional(6)?,
    })
}

pub(crate) async fn find_account(
    connection: &mut Connection<'_>,
    of: AccountId,
) -> Result<Option<Account>, StoreError> {
    let find = format!("SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE id = $1 AND deleted_at IS NULL");
    connection.query_optional(&find, params![&of], account).await
}

pub(crate) async fn insert_account(
    transaction: &mut Transaction<'_>,
    new: &NewAccount,
    role: Role,
) -> Result<AccountId, AccountError> {
    let (id, now) = (AccountId::generate()?, transaction.now());
    let insert = "INSERT INTO accounts (id, email, name, password, role, created_at) VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (email) DO NOTHING";
    let (email, name, password) = (new.email.as_str(), new.name.as_str(), new.password.as_str());
    if transaction.execute(insert, params![&id, email, name, password, role.as_str(), now]).await? == 0 {
        return Err(AccountError::EmailTaken);
    }
    // Set-up links are for the first administrator only.
    if role == Role::Admin {
        transaction.execute("DELETE FROM links WHERE purpose = 'set-up'", &[]).await?;
    }
    Ok(id)
}

/// Declines a change that leaves no administrator, because no one could undo it.
pub(crate) async fn require_an_admin(transaction: &mut Transaction<'_>) -> Result<(), AccountError> {
    let any = "SELECT count(*) > 0 FROM accounts WHERE role = 'admin' AND disabled_at IS NULL";
    if transaction.query_value(any, &[]).await? { Ok(()) } else { Err(AccountError::LastAdmin) }
}
