//! Accounts, sessions, links and the audit log in SQLite. Every change and its line of the log are one transaction.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::Sqlite;
use crate::accounts::{Credentials, Email, LinkFor, NewAccount, Origin, Session, SessionRecord};
use crate::accounts::{LINK_LIFE, SEEN_EVERY, SESSION_IDLE, SESSION_LIFE};
use crate::id::{AccountId, Id, LinkId, SessionId};
use crate::token::Token;
use crate::viewer::{Role, Viewer};
use crate::{Account, AuditRecord, Begun, Declined, Link, StoreError};

const ACCOUNT: &str = "accounts.id, email, accounts.name, role, accounts.created_at, signed_in_at, disabled_at";

impl Sqlite {
    /// Makes a change together with its line of the audit log, or neither.
    pub(super) fn change<T, E: From<StoreError>>(
        &self,
        make: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.with(|connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // A change that is declined is rolled back, and the connection is as good as before.
            match make(&transaction) {
                Ok(made) => {
                    transaction.commit()?;
                    Ok(Ok(made))
                }
                Err(declined) => Ok(Err(declined)),
            }
        })?
    }

    pub(crate) fn count_accounts(&self) -> Result<u64, StoreError> {
        self.with(|connection| Ok(connection.query_row("SELECT count(*) FROM accounts", [], |row| row.get(0))?))
    }

    /// A link for the first account, in place of all earlier ones; `None` if there is an account.
    pub(crate) fn set_up(&self, now: u64) -> Result<Option<Token>, StoreError> {
        self.change(|transaction| {
            if transaction.query_row("SELECT count(*) > 0 FROM accounts", [], |row| row.get(0))? {
                return Ok(None);
            }
            transaction.execute("DELETE FROM links WHERE purpose = 'set-up'", [])?;
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

    pub(crate) fn create_account(
        &self,
        viewer: &Viewer,
        new: &NewAccount,
        role: Role,
        now: u64,
    ) -> Result<AccountId, Declined> {
        self.change(|transaction| {
            let id = insert_account(transaction, new, role, now)?;
            let what = format!("created the {role}");
            audit_by(transaction, viewer, &what, new.email.as_str(), now)?;
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

    /// Begins a session; `None` if the account is not there or disabled.
    pub(crate) fn begin_session(
        &self,
        account: AccountId,
        origin: &Origin,
        now: u64,
    ) -> Result<Option<Begun>, StoreError> {
        self.change(|transaction| {
            let Some(found) = find_account(transaction, account)?.filter(|found| found.disabled_at.is_none()) else {
                return Ok(None);
            };
            let (token, id) = (Token::generate()?, SessionId::generate()?);
            transaction.execute("DELETE FROM sessions WHERE created_at < ?1 OR seen_at < ?2", oldest(now))?;
            transaction.execute(
                "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)",
                params![token.digest(), id.as_str(), account.as_str(), origin.address, origin.agent, now],
            )?;
            transaction
                .execute("UPDATE accounts SET signed_in_at = ?2 WHERE id = ?1", params![account.as_str(), now])?;
            audit(transaction, found.email.as_str(), &origin.address, "signed in", found.email.as_str(), now)?;
            let viewer = Viewer::signed_in(found, &origin.address);
            Ok(Some(Begun { token, session: Session { id, viewer } }))
        })
    }

    pub(crate) fn session(&self, token: &Token, address: &str, now: u64) -> Result<Option<Session>, StoreError> {
        self.with(|connection| {
            let mut find = connection.prepare_cached(&format!(
                "SELECT {ACCOUNT}, sessions.id, seen_at FROM sessions JOIN accounts ON accounts.id = account
                 WHERE digest = ?1 AND disabled_at IS NULL AND sessions.created_at >= ?2 AND seen_at >= ?3"
            ))?;
            let [began, seen] = oldest(now);
            let found = find
                .query_row(params![token.digest(), began, seen], |row| {
                    Ok((account(row)?, id::<crate::id::ASession>(row, 7)?, row.get::<_, u64>(8)?))
                })
                .optional()?;
            let Some((account, id, seen_at)) = found else { return Ok(None) };
            if seen_at + SEEN_EVERY < now {
                connection
                    .execute("UPDATE sessions SET seen_at = ?2 WHERE digest = ?1", params![token.digest(), now])?;
            }
            Ok(Some(Session { id, viewer: Viewer::signed_in(account, address) }))
        })
    }

    pub(crate) fn sessions(&self, account: AccountId, now: u64) -> Result<Vec<SessionRecord>, StoreError> {
        self.with(|connection| {
            let mut list = connection.prepare(
                "SELECT id, address, agent, created_at, seen_at FROM sessions
                 WHERE account = ?1 AND created_at >= ?2 AND seen_at >= ?3 ORDER BY seen_at DESC, id",
            )?;
            let [began, seen] = oldest(now);
            let rows = list.query_map(params![account.as_str(), began, seen], |row| {
                Ok(SessionRecord {
                    id: id(row, 0)?,
                    origin: Origin { address: row.get(1)?, agent: row.get(2)? },
                    created_at: row.get(3)?,
                    seen_at: row.get(4)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub(crate) fn end_session(&self, viewer: &Viewer, session: SessionId, now: u64) -> Result<bool, StoreError> {
        let Some(owner) = viewer.id() else { return Ok(false) };
        self.change(|transaction| {
            let ended = transaction
                .execute("DELETE FROM sessions WHERE id = ?1 AND account = ?2", [session.as_str(), owner.as_str()])?;
            if ended > 0 {
                audit_by(transaction, viewer, "ended the session", session.as_str(), now)?;
            }
            Ok(ended > 0)
        })
    }

    pub(crate) fn end_other_sessions(&self, viewer: &Viewer, but: SessionId, now: u64) -> Result<usize, StoreError> {
        let Some(owner) = viewer.id() else { return Ok(0) };
        self.change(|transaction| {
            let ended = transaction
                .execute("DELETE FROM sessions WHERE id <> ?1 AND account = ?2", [but.as_str(), owner.as_str()])?;
            audit_by(transaction, viewer, "ended all other sessions", &ended.to_string(), now)?;
            Ok(ended)
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

    pub(crate) fn audit(&self, before: u64, limit: u32) -> Result<Vec<AuditRecord>, StoreError> {
        self.with(|connection| {
            let mut list = connection.prepare(
                "SELECT number, at, who, address, what, subject FROM audit WHERE number < ?1 ORDER BY number DESC LIMIT ?2",
            )?;
            let rows = list.query_map(params![before.min(i64::MAX as u64), limit], |row| {
                Ok(AuditRecord {
                    number: row.get(0)?,
                    at: row.get(1)?,
                    who: row.get(2)?,
                    address: row.get(3)?,
                    what: row.get(4)?,
                    subject: row.get(5)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Writes a line of the audit log.
pub(super) fn audit_by(
    transaction: &Transaction<'_>,
    viewer: &Viewer,
    what: &str,
    subject: &str,
    now: u64,
) -> Result<(), StoreError> {
    audit(transaction, viewer.name(), viewer.address(), what, subject, now)
}

fn audit(
    transaction: &Transaction<'_>,
    who: &str,
    address: &str,
    what: &str,
    subject: &str,
    now: u64,
) -> Result<(), StoreError> {
    transaction.execute(
        "INSERT INTO audit (at, who, address, what, subject) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![now, who, address, what, subject],
    )?;
    Ok(())
}

fn insert_account(
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

fn find_account(connection: &Connection, of: AccountId) -> Result<Option<Account>, rusqlite::Error> {
    let find = format!("SELECT {ACCOUNT} FROM accounts WHERE id = ?1");
    connection.query_row(&find, [of.as_str()], account).optional()
}

fn account(row: &Row<'_>) -> Result<Account, rusqlite::Error> {
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

/// The oldest start and the oldest use of a session that is still good.
fn oldest(now: u64) -> [u64; 2] {
    [now.saturating_sub(SESSION_LIFE), now.saturating_sub(SESSION_IDLE)]
}

/// A column that holds an id.
pub(super) fn id<Of>(row: &Row<'_>, column: usize) -> Result<Id<Of>, rusqlite::Error> {
    parsed(row, column, "id")
}

fn parsed<T: std::str::FromStr>(row: &Row<'_>, column: usize, what: &str) -> Result<T, rusqlite::Error> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| rusqlite::Error::InvalidColumnType(column, what.to_owned(), rusqlite::types::Type::Text))
}
