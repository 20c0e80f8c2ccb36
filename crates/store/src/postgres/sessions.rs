//! Sessions in PostgreSQL, by the digest of their secret: whichever replica began one, every other knows it.

use tokio_postgres::Row;

use super::accounts::{ACCOUNT, account, find_account};
use super::audit::{audit, audit_by};
use super::{Postgres, bytes, count, id, number, signed, text};
use crate::accounts::{Origin, SEEN_EVERY, SESSION_IDLE, SESSION_LIFE, Session, SessionRecord};
use crate::id::{AccountId, SessionId};
use crate::token::Token;
use crate::viewer::Viewer;
use crate::{Begun, StoreError};

impl Postgres {
    /// Begins a session; `None` if the account is not there or disabled.
    pub(crate) async fn begin_session(
        &self,
        account: AccountId,
        origin: &Origin,
        now: u64,
    ) -> Result<Option<Begun>, StoreError> {
        let change = self.change().await?;
        let found = find_account(&change, account).await?.filter(|found| found.disabled_at.is_none());
        let Some(found) = found else {
            change.commit().await?;
            return Ok(None);
        };
        let (token, id) = (Token::generate()?, SessionId::generate()?);
        let [began, seen] = oldest(now);
        let ended = "DELETE FROM sessions WHERE created_at < $1 OR seen_at < $2";
        change.execute_typed(ended, &[number(&began), number(&seen)]).await?;
        let insert = "INSERT INTO sessions (digest, id, account, address, agent, created_at, seen_at)
            VALUES ($1, $2, $3, $4, $5, $6, $6)";
        change
            .execute_typed(
                insert,
                &[
                    bytes(&token.digest().as_slice()),
                    text(&id.as_str()),
                    text(&account.as_str()),
                    text(&origin.address),
                    text(&origin.agent),
                    number(&signed(now)),
                ],
            )
            .await?;
        let signed_in = "UPDATE accounts SET signed_in_at = $2 WHERE id = $1";
        change.execute_typed(signed_in, &[text(&account.as_str()), number(&signed(now))]).await?;
        audit(&change, found.email.as_str(), &origin.address, "signed in", found.email.as_str(), now).await?;
        change.commit().await?;
        let viewer = Viewer::signed_in(found, &origin.address);
        Ok(Some(Begun { token, session: Session { id, viewer } }))
    }

    pub(crate) async fn session(&self, token: &Token, address: &str, now: u64) -> Result<Option<Session>, StoreError> {
        let find = format!(
            "SELECT {ACCOUNT}, sessions.id, seen_at FROM sessions JOIN accounts ON accounts.id = account
             WHERE digest = $1 AND disabled_at IS NULL AND sessions.created_at >= $2 AND seen_at >= $3"
        );
        let client = self.client().await?;
        let digest = token.digest();
        let [began, seen] = oldest(now);
        let Some(row) =
            client.query_typed_opt(&find, &[bytes(&digest.as_slice()), number(&began), number(&seen)]).await?
        else {
            return Ok(None);
        };
        if count(&row, 8)? + SEEN_EVERY < now {
            let note = "UPDATE sessions SET seen_at = $2 WHERE digest = $1";
            client.execute_typed(note, &[bytes(&digest.as_slice()), number(&signed(now))]).await?;
        }
        Ok(Some(Session { id: id(&row, 7)?, viewer: Viewer::signed_in(account(&row)?, address) }))
    }

    pub(crate) async fn sessions(&self, account: AccountId, now: u64) -> Result<Vec<SessionRecord>, StoreError> {
        let list = "SELECT id, address, agent, created_at, seen_at FROM sessions
            WHERE account = $1 AND created_at >= $2 AND seen_at >= $3 ORDER BY seen_at DESC, id";
        let [began, seen] = oldest(now);
        let rows =
            self.client().await?.query_typed(list, &[text(&account.as_str()), number(&began), number(&seen)]).await?;
        let record = |row: &Row| {
            Ok(SessionRecord {
                id: id(row, 0)?,
                origin: Origin { address: row.try_get(1)?, agent: row.try_get(2)? },
                created_at: count(row, 3)?,
                seen_at: count(row, 4)?,
            })
        };
        rows.iter().map(record).collect()
    }

    pub(crate) async fn end_session(&self, viewer: &Viewer, session: SessionId, now: u64) -> Result<bool, StoreError> {
        let Some(owner) = viewer.id() else { return Ok(false) };
        let change = self.change().await?;
        let end = "DELETE FROM sessions WHERE id = $1 AND account = $2";
        let ended = change.execute_typed(end, &[text(&session.as_str()), text(&owner.as_str())]).await?;
        if ended > 0 {
            audit_by(&change, viewer, "ended the session", session.as_str(), now).await?;
        }
        change.commit().await?;
        Ok(ended > 0)
    }

    pub(crate) async fn end_other_sessions(
        &self,
        viewer: &Viewer,
        but: SessionId,
        now: u64,
    ) -> Result<usize, StoreError> {
        let Some(owner) = viewer.id() else { return Ok(0) };
        let change = self.change().await?;
        let end = "DELETE FROM sessions WHERE id <> $1 AND account = $2";
        let ended = change.execute_typed(end, &[text(&but.as_str()), text(&owner.as_str())]).await?;
        audit_by(&change, viewer, "ended all other sessions", &ended.to_string(), now).await?;
        change.commit().await?;
        Ok(ended as usize)
    }
}

/// The oldest start and the oldest use of a session that is still good.
fn oldest(now: u64) -> [i64; 2] {
    [SESSION_LIFE, SESSION_IDLE].map(|life| signed(now.saturating_sub(life)))
}
