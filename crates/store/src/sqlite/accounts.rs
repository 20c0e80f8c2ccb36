//! Accounts in SQLite. Every change and its line of the audit log are one transaction.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::audit::audit_by;
use super::{Sqlite, id, parsed};
use crate::accounts::{Credentials, Email, NewAccount};
use crate::id::{AccountId, SessionId};
use crate::viewer::{Role, Viewer};
use crate::{Account, Declined, StoreError};

/// The columns of an account.
pub(super) const ACCOUNT: &str =
    "accounts.id, email, accounts.name, role, accounts.created_at, signed_in_at, disabled_at";

impl Sqlite {
    pub(crate) fn count_accounts(&self) -> Result<u64, StoreError> {
        self.with(|connection| Ok(connection.query_row("SELECT count(*) FROM accounts", [], |row| row.get(0))?))
    }

    pub(crate) fn credentials(&self, email: &Email) -> Result<Option<Credentials>, StoreError> {
        self.with(|connection| {
            let mut find = connection
                .prepare_cached("SELECT id, password FROM accounts WHERE email = ?1 AND disabled_at IS NULL")?;
            let found =
                find.query_row([email.as_str()], |row| Ok(Credentials { account: id(row, 0)?, password: row.get(1)? }));
            Ok(found.optional()?)
        })
    }

    pub(crate) fn password(&self, account: AccountId) -> Result<Option<String>, StoreError> {
        self.with(|connection| {
            let find = connection
                .query_row("SELECT password FROM accounts WHERE id = ?1", [account.as_str()], |row| row.get(0));
            Ok(find.optional()?)
        })
    }

    /// Changes the viewer's own password, and ends all their other sessions.
    pub(crate) fn set_password(
        &self,
        viewer: &Viewer,
        session: SessionId,
        password: &str,
        now: u64,
    ) -> Result<(), StoreError> {
        let Some(owner) = viewer.id() else { return Ok(()) };
        self.change(|transaction| {
            transaction.execute("UPDATE accounts SET password = ?2 WHERE id = ?1", [owner.as_str(), password])?;
            transaction
                .execute("DELETE FROM sessions WHERE account = ?1 AND id <> ?2", [owner.as_str(), session.as_str()])?;
            audit_by(transaction, viewer, "changed the password", viewer.name(), now)
        })
    }

    pub(crate) fn set_own_name(&self, viewer: &Viewer, name: &str, now: u64) -> Result<(), StoreError> {
        let Some(owner) = viewer.id() else { return Ok(()) };
        self.change(|transaction| {
            transaction.execute("UPDATE accounts SET name = ?2 WHERE id = ?1", [owner.as_str(), name])?;
            audit_by(transaction, viewer, "changed their name to", name, now)
        })
    }

    pub(crate) fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        self.with(|connection| {
            let mut list = connection.prepare(&format!("SELECT {ACCOUNT} FROM accounts ORDER BY created_at, id"))?;
            Ok(list.query_map([], account)?.collect::<Result<_, _>>()?)
        })
    }

    pub(crate) fn set_role(&self, viewer: &Viewer, of: AccountId, role: Role, now: u64) -> Result<Account, Declined> {
        self.change(|transaction| {
            let found = find_account(transaction, of)?.ok_or(Declined::NoSuchAccount)?;
            transaction.execute("UPDATE accounts SET role = ?2 WHERE id = ?1", [of.as_str(), role.as_str()])?;
            keep_an_admin(transaction)?;
            audit_by(transaction, viewer, &format!("gave the role {role} to"), found.email.as_str(), now)?;
            Ok(Account { role, ..found })
        })
    }

    pub(crate) fn set_disabled(
        &self,
        viewer: &Viewer,
        of: AccountId,
        disabled: bool,
        now: u64,
    ) -> Result<Account, Declined> {
        self.change(|transaction| {
            let found = find_account(transaction, of)?.ok_or(Declined::NoSuchAccount)?;
            let disabled_at = disabled.then_some(found.disabled_at.unwrap_or(now));
            transaction
                .execute("UPDATE accounts SET disabled_at = ?2 WHERE id = ?1", params![of.as_str(), disabled_at])?;
            keep_an_admin(transaction)?;
            if disabled {
                transaction.execute("DELETE FROM sessions WHERE account = ?1", [of.as_str()])?;
            }
            let what = if disabled { "disabled the account" } else { "enabled the account" };
            audit_by(transaction, viewer, what, found.email.as_str(), now)?;
            Ok(Account { disabled_at, ..found })
        })
    }
}

pub(super) fn insert_account(
    transaction: &Transaction<'_>,
    new: &NewAccount,
    role: Role,
    now: u64,
) -> Result<AccountId, Declined> {
    let id = AccountId::generate()?;
    let inserted = transaction.execute(
        "INSERT INTO accounts (id, email, name, password, role, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (email) DO NOTHING",
        params![id.as_str(), new.email.as_str(), new.name, new.password, role.as_str(), now],
    )?;
    if inserted == 0 {
        return Err(Declined::EmailTaken);
    }
    // Where there is an account, there is nothing to be set up.
    transaction.execute("DELETE FROM links WHERE purpose = 'set-up'", [])?;
    Ok(id)
}

fn keep_an_admin(transaction: &Transaction<'_>) -> Result<(), Declined> {
    let left = "SELECT count(*) > 0 FROM accounts WHERE role = 'admin' AND disabled_at IS NULL";
    if transaction.query_row(left, [], |row| row.get(0))? { Ok(()) } else { Err(Declined::LastAdmin) }
}

pub(super) fn find_account(connection: &Connection, of: AccountId) -> Result<Option<Account>, rusqlite::Error> {
    let find = format!("SELECT {ACCOUNT} FROM accounts WHERE id = ?1");
    connection.query_row(&find, [of.as_str()], account).optional()
}

/// Reads the columns of an account at a row's beginning.
pub(super) fn account(row: &Row<'_>) -> Result<Account, rusqlite::Error> {
    Ok(Account {
        id: id(row, 0)?,
        email: Email::stored(row.get(1)?),
        name: row.get(2)?,
        role: parsed(row, 3, "role")?,
        created_at: row.get(4)?,
        signed_in_at: row.get(5)?,
        disabled_at: row.get(6)?,
    })
}
