//! Accounts in PostgreSQL. Every change and its line of the audit log are one transaction.

use tokio_postgres::{Client, Row};

use super::audit::audit_by;
use super::{Postgres, Transaction, count, count_if_any, id, number, parsed, signed, text};
use crate::accounts::{Credentials, Email, NewAccount};
use crate::id::{AccountId, SessionId};
use crate::viewer::{Role, Viewer};
use crate::{Account, Declined, StoreError};

/// The columns of an account.
pub(super) const ACCOUNT: &str =
    "accounts.id, email, accounts.name, role, accounts.created_at, signed_in_at, disabled_at";

impl Postgres {
    pub(crate) async fn count_accounts(&self) -> Result<u64, StoreError> {
        count(&self.client().await?.query_typed_one("SELECT count(*) FROM accounts", &[]).await?, 0)
    }

    pub(crate) async fn credentials(&self, email: &Email) -> Result<Option<Credentials>, StoreError> {
        let find = "SELECT id, password FROM accounts WHERE email = $1 AND disabled_at IS NULL";
        let found = self.client().await?.query_typed_opt(find, &[text(&email.as_str())]).await?;
        found.map(|row| Ok(Credentials { account: id(&row, 0)?, password: row.try_get(1)? })).transpose()
    }

    pub(crate) async fn password(&self, account: AccountId) -> Result<Option<String>, StoreError> {
        let find = "SELECT password FROM accounts WHERE id = $1";
        let found = self.client().await?.query_typed_opt(find, &[text(&account.as_str())]).await?;
        Ok(found.map(|row| row.try_get(0)).transpose()?)
    }

    /// Changes the viewer's own password, and ends all their other sessions.
    pub(crate) async fn set_password(
        &self,
        viewer: &Viewer,
        session: SessionId,
        password: &str,
        now: u64,
    ) -> Result<(), StoreError> {
        let Some(owner) = viewer.id() else { return Ok(()) };
        let change = self.change().await?;
        let set = "UPDATE accounts SET password = $2 WHERE id = $1";
        change.execute_typed(set, &[text(&owner.as_str()), text(&password)]).await?;
        let end = "DELETE FROM sessions WHERE account = $1 AND id <> $2";
        change.execute_typed(end, &[text(&owner.as_str()), text(&session.as_str())]).await?;
        audit_by(&change, viewer, "changed the password", viewer.name(), now).await?;
        change.commit().await
    }

    pub(crate) async fn set_own_name(&self, viewer: &Viewer, name: &str, now: u64) -> Result<(), StoreError> {
        let Some(owner) = viewer.id() else { return Ok(()) };
        let change = self.change().await?;
        let set = "UPDATE accounts SET name = $2 WHERE id = $1";
        change.execute_typed(set, &[text(&owner.as_str()), text(&name)]).await?;
        audit_by(&change, viewer, "changed their name to", name, now).await?;
        change.commit().await
    }

    pub(crate) async fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        let list = format!("SELECT {ACCOUNT} FROM accounts ORDER BY created_at, id");
        let rows = self.client().await?.query_typed(&list, &[]).await?;
        rows.iter().map(account).collect()
    }

    pub(crate) async fn set_role(
        &self,
        viewer: &Viewer,
        of: AccountId,
        role: Role,
        now: u64,
    ) -> Result<Account, Declined> {
        let change = self.change().await?;
        let found = find_account(&change, of).await?.ok_or(Declined::NoSuchAccount)?;
        let set = "UPDATE accounts SET role = $2 WHERE id = $1";
        change.execute_typed(set, &[text(&of.as_str()), text(&role.as_str())]).await?;
        keep_an_admin(&change).await?;
        audit_by(&change, viewer, &format!("gave the role {role} to"), found.email.as_str(), now).await?;
        change.commit().await?;
        Ok(Account { role, ..found })
    }

    pub(crate) async fn set_disabled(
        &self,
        viewer: &Viewer,
        of: AccountId,
        disabled: bool,
        now: u64,
    ) -> Result<Account, Declined> {
        let change = self.change().await?;
        let found = find_account(&change, of).await?.ok_or(Declined::NoSuchAccount)?;
        let disabled_at = disabled.then_some(found.disabled_at.unwrap_or(now));
        let set = "UPDATE accounts SET disabled_at = $2 WHERE id = $1";
        change.execute_typed(set, &[text(&of.as_str()), number(&disabled_at.map(signed))]).await?;
        keep_an_admin(&change).await?;
        if disabled {
            change.execute_typed("DELETE FROM sessions WHERE account = $1", &[text(&of.as_str())]).await?;
        }
        let what = if disabled { "disabled the account" } else { "enabled the account" };
        audit_by(&change, viewer, what, found.email.as_str(), now).await?;
        change.commit().await?;
        Ok(Account { disabled_at, ..found })
    }
}

pub(super) async fn insert_account(
    change: &Transaction,
    new: &NewAccount,
    role: Role,
    now: u64,
) -> Result<AccountId, Declined> {
    let id = AccountId::generate()?;
    let insert = "INSERT INTO accounts (id, email, name, password, role, created_at) VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (email) DO NOTHING";
    if change
        .execute_typed(
            insert,
            &[
                text(&id.as_str()),
                text(&new.email.as_str()),
                text(&new.name),
                text(&new.password),
                text(&role.as_str()),
                number(&signed(now)),
            ],
        )
        .await?
        == 0
    {
        return Err(Declined::EmailTaken);
    }
    // Where there is an account, there is nothing to be set up.
    change.execute_typed("DELETE FROM links WHERE purpose = 'set-up'", &[]).await?;
    Ok(id)
}

async fn keep_an_admin(change: &Transaction) -> Result<(), Declined> {
    let left = "SELECT count(*) > 0 FROM accounts WHERE role = 'admin' AND disabled_at IS NULL";
    if change.query_typed_one(left, &[]).await?.try_get(0)? { Ok(()) } else { Err(Declined::LastAdmin) }
}

pub(super) async fn find_account(client: &Client, of: AccountId) -> Result<Option<Account>, StoreError> {
    let find = format!("SELECT {ACCOUNT} FROM accounts WHERE id = $1");
    client.query_typed_opt(&find, &[text(&of.as_str())]).await?.as_ref().map(account).transpose()
}

/// Reads the columns of an account at a row's beginning.
pub(super) fn account(row: &Row) -> Result<Account, StoreError> {
    Ok(Account {
        id: id(row, 0)?,
        email: Email::stored(row.try_get(1)?),
        name: row.try_get(2)?,
        role: parsed(row, 3, "role")?,
        created_at: count(row, 4)?,
        signed_in_at: count_if_any(row, 5)?,
        disabled_at: count_if_any(row, 6)?,
    })
}
