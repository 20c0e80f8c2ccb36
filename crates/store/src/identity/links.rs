//! Links with a secret, for first set-up, invitations and password resets. Only the secret's digest is stored.

use std::time::Duration;

use chat::Timestamp;

use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::sql::{Connection, Row, Transaction, params};
use crate::identity::accounts::{AccountError, NewAccount, insert_account};
use crate::identity::challenges::forget_challenges;
use crate::identity::confirmations::{require_another, require_confirmed};
use crate::values::{Account, AccountId, Admin, Email, LinkId, Role, Token};
use crate::{Links, StoreError};

/// For set-up and reset links.
const LINK_LIFETIME: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkPurpose {
    /// Create the first administrator.
    SetUp,
    /// Create an account with this role.
    Join(Role),
    /// Choose a new password for this account.
    Reset(Email),
}

/// A link that is unused, has not expired, and whose maker may still create links.
#[derive(Debug, Clone)]
pub struct Link {
    pub id: LinkId,
    pub purpose: LinkPurpose,
    /// The person it is for; may be empty.
    pub note: String,
    /// An e-mail address, or `operator`.
    pub made_by: String,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

const NEEDS_SET_UP: &str = "SELECT count(*) = 0 FROM accounts WHERE role = 'admin'";

impl Links<'_> {
    /// Whether there is no administrator yet.
    pub async fn needs_set_up(self) -> Result<bool, StoreError> {
        self.connection().await?.query_value(NEEDS_SET_UP, &[]).await
    }

    /// `None` once there is an administrator. Several such links may be valid; creating the first administrator voids all.
    pub async fn create_setup(self) -> Result<Option<Token>, StoreError> {
        self.change_without_viewer(async |transaction| {
            if !transaction.query_value::<bool>(NEEDS_SET_UP, &[]).await? {
                return Ok(None);
            }
            let link = insert_link(transaction, &LinkPurpose::SetUp, None, "", "operator", LINK_LIFETIME).await?;
            Ok(Some(link.0))
        })
        .await
    }

    /// `None` if the link is not, or no longer, valid.
    pub async fn find(self, token: &Token) -> Result<Option<Link>, StoreError> {
        let found = find_link(&mut self.connection().await?, token, self.now()).await?;
        Ok(found.map(|(link, _)| link))
    }

    /// Creates an account, and uses the link up.
    pub async fn use_link(self, token: &Token, new: &NewAccount, address: &str) -> Result<AccountId, AccountError> {
        self.change_without_viewer(async |transaction| {
            let now = transaction.now();
            let (link, _) = find_link(transaction, token, now).await?.ok_or(AccountError::LinkGone)?;
            let role = match link.purpose {
                LinkPurpose::SetUp => Role::Admin,
                LinkPurpose::Join(role) => role,
                LinkPurpose::Reset(_) => return Err(AccountError::LinkGone),
            };
            delete_link(transaction, token).await?;
            let id = insert_account(transaction, new, role).await?;
            let (email, action) = (new.email.as_str(), AuditAction::Joined { role, invited_by: link.made_by });
            transaction.audit_as(email, address, action, &AuditSubject::person_with(id, email)).await?;
            Ok(id)
        })
        .await
    }

    /// Sets an account's password, ends all its sessions, and uses the link up.
    pub async fn reset_password(self, token: &Token, password: &str, address: &str) -> Result<AccountId, AccountError> {
        self.change_without_viewer(async |transaction| {
            let now = transaction.now();
            let found = find_link(transaction, token, now).await?;
            let Some((Link { purpose: LinkPurpose::Reset(email), .. }, Some(account))) = found else {
                return Err(AccountError::LinkGone);
            };
            delete_link(transaction, token).await?;
            let set = "UPDATE accounts SET password = $2 WHERE id = $1";
            transaction.execute(set, params![&account, password]).await?;
            transaction.execute("DELETE FROM sessions WHERE account = $1", params![&account]).await?;
            forget_challenges(transaction, account).await?;
            let subject = AuditSubject::person_with(account, email.as_str());
            transaction.audit_as(email.as_str(), address, AuditAction::ResetPassword, &subject).await?;
            Ok(account)
        })
        .await
    }

    /// A link to create an account; `note` says who it is for.
    pub async fn invite(
        self,
        admin: Admin<'_>,
        role: Role,
        note: &str,
        lifetime: Duration,
    ) -> Result<Token, AccountError> {
        self.change(admin.0, async |transaction| {
            if role == Role::Admin {
                require_confirmed(transaction, admin.0).await?;
            }
            let (token, id) =
                insert_link(transaction, &LinkPurpose::Join(role), None, note, admin.0.name(), lifetime).await?;
            transaction.audit(admin.0, AuditAction::Invited { role }, &AuditSubject::link(id, note)).await?;
            Ok(token)
        })
        .await
    }

    /// A link to choose a new password. It replaces earlier ones.
    pub async fn create_reset(self, admin: Admin<'_>, email: &Email) -> Result<Token, AccountError> {
        self.change(admin.0, async |transaction| {
            let (find, address) = ("SELECT id FROM accounts WHERE email = $1", email.as_str());
            let found = transaction.query_optional(find, params![address], |row| row.get(0)).await?;
            let account: AccountId = found.ok_or(AccountError::NoSuchAccount)?;
            require_another(admin.0, account)?;
            require_confirmed(transaction, admin.0).await?;
            let earlier = "DELETE FROM links WHERE purpose = 'reset' AND account = $1";
            transaction.execute(earlier, params![&account]).await?;
            let purpose = LinkPurpose::Reset(email.clone());
            let (token, _) =
                insert_link(transaction, &purpose, Some(account), address, admin.0.name(), LINK_LIFETIME).await?;
            let subject = AuditSubject::person_with(account, address);
            transaction.audit(admin.0, AuditAction::CreatedResetLink, &subject).await?;
            Ok(token)
        })
        .await
    }

    /// All valid links, the newest last.
    pub async fn list(self, _admin: Admin<'_>) -> Result<Vec<Link>, StoreError> {
        let list = format!("{SELECT_LINK} WHERE expires_at > $1 AND {IS_VALID} ORDER BY links.created_at, links.id");
        self.connection().await?.query(&list, params![self.now()], |row| Ok(read_link(row)?.0)).await
    }

    /// `false` if there is no such link.
    pub async fn revoke(self, admin: Admin<'_>, link: LinkId) -> Result<bool, AccountError> {
        self.change(admin.0, async |transaction| {
            let delete = "DELETE FROM links WHERE id = $1 RETURNING note";
            let note = transaction.query_optional(delete, params![&link], |row| row.get::<String>(0)).await?;
            if let Some(note) = &note {
                transaction.audit(admin.0, AuditAction::WithdrewLink, &AuditSubject::link(link, note)).await?;
            }
            Ok(note.is_some())
        })
        .await
    }
}

/// Links that ended before `$1`. The ledger runs this, with a time that two clocks confirm.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM links WHERE expires_at <= $1";

const SELECT_LINK: &str =
    "SELECT links.id, purpose, links.role, account, email, note, made_by, links.created_at, expires_at
    FROM links LEFT JOIN accounts ON accounts.id = account";

/// The link's maker is the operator or still an administrator, and the account whose password it resets is not disabled.
/// Demoting and disabling withdraw links; this condition covers links that an earlier version left. Set-up links are void
/// once there is an administrator.
const IS_VALID: &str = "accounts.disabled_at IS NULL AND NOT EXISTS (SELECT 1 FROM accounts AS maker
    WHERE maker.email = made_by AND (maker.role <> 'admin' OR maker.disabled_at IS NOT NULL))
    AND NOT (purpose = 'set-up' AND EXISTS (SELECT 1 FROM accounts AS first WHERE first.role = 'admin'))";

/// A valid link, and the account whose password it resets.
async fn find_link(
    connection: &mut Connection<'_>,
    token: &Token,
    now: Timestamp,
) -> Result<Option<(Link, Option<AccountId>)>, StoreError> {
    let find = format!("{SELECT_LINK} WHERE digest = $1 AND expires_at > $2 AND {IS_VALID}");
    connection.query_optional(&find, params![&token.digest(), now], read_link).await
}

fn read_link(row: &Row<'_>) -> Result<(Link, Option<AccountId>), StoreError> {
    let purpose: String = row.get(1)?;
    let (purpose, account) = match purpose.as_str() {
        "join" => (LinkPurpose::Join(row.get(2)?), None),
        "reset" => (LinkPurpose::Reset(row.get(4)?), Some(row.get(3)?)),
        _ => (LinkPurpose::SetUp, None),
    };
    let link = Link {
        id: row.get(0)?,
        purpose,
        note: row.get(5)?,
        made_by: row.get(6)?,
        created_at: row.get(7)?,
        expires_at: row.get(8)?,
    };
    Ok((link, account))
}

async fn insert_link(
    transaction: &mut Transaction<'_>,
    purpose: &LinkPurpose,
    account: Option<AccountId>,
    note: &str,
    made_by: &str,
    lifetime: Duration,
) -> Result<(Token, LinkId), StoreError> {
    let (token, id, now) = (Token::generate()?, LinkId::generate()?, transaction.now());
    let (word, role) = match purpose {
        LinkPurpose::SetUp => ("set-up", None),
        LinkPurpose::Join(role) => ("join", Some(role.as_str())),
        LinkPurpose::Reset(_) => ("reset", None),
    };
    let insert = "INSERT INTO links (digest, id, purpose, role, account, note, made_by, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let (digest, expires_at) = (token.digest(), now + lifetime);
    let parameters = params![&digest, &id, word, role, account.as_ref(), note, made_by, now, expires_at];
    transaction.execute(insert, parameters).await?;
    Ok((token, id))
}

/// Which links to withdraw.
#[derive(Clone, Copy)]
pub(crate) enum LinksOf<'a> {
    /// Those that this account created.
    Maker(&'a Account),
    /// Those that reset this account's password.
    Account(&'a Account),
}

/// Withdraws links, and returns the number of those that had not expired.
pub(crate) async fn withdraw_links(
    transaction: &mut Transaction<'_>,
    admin: Admin<'_>,
    of: LinksOf<'_>,
) -> Result<usize, StoreError> {
    let (column, value) = match of {
        LinksOf::Maker(account) => ("made_by", account.email.as_str()),
        LinksOf::Account(account) => ("account", account.id.as_str()),
    };
    let delete = format!("DELETE FROM links WHERE {column} = $1 RETURNING id, note, expires_at");
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<String>(1)?, row.get::<Timestamp>(2)?));
    let now = transaction.now();
    let mut withdrawn = transaction.query(&delete, params![value], read).await?;
    withdrawn.retain(|(.., expires_at)| *expires_at > now);
    for (id, note, _) in &withdrawn {
        transaction.audit(admin.0, AuditAction::WithdrewLink, &AuditSubject::link(*id, note)).await?;
    }
    Ok(withdrawn.len())
}

async fn delete_link(transaction: &mut Transaction<'_>, token: &Token) -> Result<(), StoreError> {
    transaction.execute("DELETE FROM links WHERE digest = $1", params![&token.digest()]).await?;
    Ok(())
}
