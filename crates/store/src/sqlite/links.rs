//! Links in SQLite, by the digest of their secret: invitations, the first set-up, and new passwords.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::accounts::insert_account;
use super::audit::{audit, audit_by};
use super::{Sqlite, id, parsed};
use crate::accounts::{Email, LINK_LIFE, LinkFor, NewAccount};
use crate::id::{AccountId, LinkId};
use crate::token::Token;
use crate::viewer::{Role, Viewer};
use crate::{Declined, Link, StoreError};

impl Sqlite {
    /// A link for the first account, in place of all earlier ones; `None` if there is an account.
    pub(crate) fn set_up(&self, now: u64) -> Result<Option<Token>, StoreError> {
        self.change(|transaction| {
            if transaction.query_row("SELECT count(*) > 0 FROM accounts", [], |row| row.get(0))? {
                return Ok(None);
            }
            Ok(Some(insert_link(transaction, &LinkFor::SetUp, None, "", "operator", now, LINK_LIFE)?))
        })
    }

    pub(crate) fn link(&self, token: &Token, now: u64) -> Result<Option<Link>, StoreError> {
        self.with(|connection| Ok(find_link(connection, token, now)?.map(|(link, _)| link)))
    }

    pub(crate) fn use_link(
        &self,
        token: &Token,
        new: &NewAccount,
        address: &str,
        now: u64,
    ) -> Result<AccountId, Declined> {
        self.change(|transaction| {
            let (link, _) = find_link(transaction, token, now)?.ok_or(Declined::LinkGone)?;
            let role = match link.purpose {
                LinkFor::SetUp => Role::Admin,
                LinkFor::Join(role) => role,
                LinkFor::Reset(_) => return Err(Declined::LinkGone),
            };
            delete_link(transaction, token)?;
            let id = insert_account(transaction, new, role, now)?;
            let what = format!("joined as {role}, by a link of {}", link.made_by);
            audit(transaction, new.email.as_str(), address, &what, new.email.as_str(), now)?;
            Ok(id)
        })
    }

    /// Gives the account of a link another password, and ends all its sessions.
    pub(crate) fn reset_password(
        &self,
        token: &Token,
        password: &str,
        address: &str,
        now: u64,
    ) -> Result<AccountId, Declined> {
        self.change(|transaction| {
            let found = find_link(transaction, token, now)?;
            let Some((Link { purpose: LinkFor::Reset(email), .. }, Some(account))) = found else {
                return Err(Declined::LinkGone);
            };
            delete_link(transaction, token)?;
            transaction
                .execute("UPDATE accounts SET password = ?2 WHERE id = ?1", params![account.as_str(), password])?;
            transaction.execute("DELETE FROM sessions WHERE account = ?1", [account.as_str()])?;
            audit(transaction, email.as_str(), address, "reset the password", email.as_str(), now)?;
            Ok(account)
        })
    }

    pub(crate) fn invite(
        &self,
        viewer: &Viewer,
        role: Role,
        note: &str,
        life: Duration,
        now: u64,
    ) -> Result<Token, StoreError> {
        self.change(|transaction| {
            let token = insert_link(transaction, &LinkFor::Join(role), None, note, viewer.name(), now, life)?;
            let what = format!("made an invitation as {role} for");
            audit_by(transaction, viewer, &what, note, now)?;
            Ok(token)
        })
    }

    pub(crate) fn reset_link(&self, viewer: &Viewer, email: &Email, now: u64) -> Result<Token, Declined> {
        self.change(|transaction| {
            let found: Option<AccountId> = transaction
                .query_row("SELECT id FROM accounts WHERE email = ?1", [email.as_str()], |row| id(row, 0))
                .optional()?;
            let account = found.ok_or(Declined::NoSuchAccount)?;
            transaction.execute("DELETE FROM links WHERE purpose = 'reset' AND account = ?1", [account.as_str()])?;
            let purpose = LinkFor::Reset(email.clone());
            let token =
                insert_link(transaction, &purpose, Some(account), email.as_str(), viewer.name(), now, LINK_LIFE)?;
            audit_by(transaction, viewer, "made a link to reset the password of", email.as_str(), now)?;
            Ok(token)
        })
    }

    pub(crate) fn links(&self, now: u64) -> Result<Vec<Link>, StoreError> {
        self.with(|connection| {
            let mut list =
                connection.prepare(&format!("{LINK} WHERE expires_at > ?1 ORDER BY links.created_at, links.id"))?;
            let rows = list.query_map([now], |row| Ok(link(row)?.0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub(crate) fn withdraw(&self, viewer: &Viewer, link: LinkId, now: u64) -> Result<bool, StoreError> {
        self.change(|transaction| {
            let note: Option<String> = transaction
                .query_row("DELETE FROM links WHERE id = ?1 RETURNING note", [link.as_str()], |row| row.get(0))
                .optional()?;
            if let Some(note) = &note {
                audit_by(transaction, viewer, "withdrew the link for", note, now)?;
            }
            Ok(note.is_some())
        })
    }
}

const LINK: &str = "SELECT links.id, purpose, links.role, account, email, note, made_by, links.created_at, expires_at
    FROM links LEFT JOIN accounts ON accounts.id = account";

fn find_link(
    connection: &Connection,
    token: &Token,
    now: u64,
) -> Result<Option<(Link, Option<AccountId>)>, rusqlite::Error> {
    let mut find = connection.prepare(&format!("{LINK} WHERE digest = ?1 AND expires_at > ?2"))?;
    find.query_row(params![token.digest(), now], link).optional()
}

fn link(row: &Row<'_>) -> Result<(Link, Option<AccountId>), rusqlite::Error> {
    let purpose: String = row.get(1)?;
    let (purpose, account) = match purpose.as_str() {
        "join" => (LinkFor::Join(parsed(row, 2, "role")?), None),
        "reset" => (LinkFor::Reset(Email::stored(row.get(4)?)), Some(id(row, 3)?)),
        _ => (LinkFor::SetUp, None),
    };
    let link = Link {
        id: id(row, 0)?,
        purpose,
        note: row.get(5)?,
        made_by: row.get(6)?,
        created_at: row.get(7)?,
        expires_at: row.get(8)?,
    };
    Ok((link, account))
}

fn insert_link(
    transaction: &Transaction<'_>,
    purpose: &LinkFor,
    account: Option<AccountId>,
    note: &str,
    made_by: &str,
    now: u64,
    life: Duration,
) -> Result<Token, StoreError> {
    let (token, id) = (Token::generate()?, LinkId::generate()?);
    let (word, role) = match purpose {
        LinkFor::SetUp => ("set-up", None),
        LinkFor::Join(role) => ("join", Some(role.as_str())),
        LinkFor::Reset(_) => ("reset", None),
    };
    transaction.execute("DELETE FROM links WHERE expires_at <= ?1", [now])?;
    let expires_at = now + life.as_millis() as u64;
    let account = account.as_ref().map(AccountId::as_str);
    transaction.execute(
        "INSERT INTO links VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![token.digest(), id.as_str(), word, role, account, note, made_by, now, expires_at],
    )?;
    Ok(token)
}

fn delete_link(transaction: &Transaction<'_>, token: &Token) -> Result<(), rusqlite::Error> {
    transaction.execute("DELETE FROM links WHERE digest = ?1", [token.digest()]).map(drop)
}
