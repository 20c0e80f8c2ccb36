//! Sessions in SQLite, by the digest of their secret.

use rusqlite::{OptionalExtension, params};

use super::accounts::{ACCOUNT, account, find_account};
use super::audit::{audit, audit_by};
use super::{Sqlite, id};
use crate::accounts::{Origin, SEEN_EVERY, SESSION_IDLE, SESSION_LIFE, Session, SessionRecord};
use crate::id::{AccountId, SessionId};
use crate::token::Token;
use crate::viewer::Viewer;
use crate::{Begun, StoreError};

impl Sqlite {
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
}

/// The oldest start and the oldest use of a session that is still good.
fn oldest(now: u64) -> [u64; 2] {
    [now.saturating_sub(SESSION_LIFE), now.saturating_sub(SESSION_IDLE)]
}
