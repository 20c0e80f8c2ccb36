//! Links in PostgreSQL, by the digest of their secret: invitations, the first set-up, and new passwords.

use std::time::Duration;

use tokio_postgres::{Client, Row};

use super::accounts::insert_account;
use super::audit::{audit, audit_by};
use super::{Postgres, Transaction, bytes, count, id, number, parsed, signed, text};
use crate::accounts::{Email, LINK_LIFE, LinkFor, NewAccount};
use crate::id::{AccountId, LinkId};
use crate::token::Token;
use crate::viewer::{Role, Viewer};
use crate::{Declined, Link, StoreError};

impl Postgres {
    /// A link for the first account, in place of all earlier ones; `None` if there is an account.
    pub(crate) async fn set_up(&self, now: u64) -> Result<Option<Token>, StoreError> {
        let change = self.change().await?;
        if change.query_typed_one("SELECT count(*) > 0 FROM accounts", &[]).await?.try_get(0)? {
            change.commit().await?;
            return Ok(None);
        }
        let token = insert_link(&change, &LinkFor::SetUp, None, "", "operator", now, LINK_LIFE).await?;
        change.commit().await?;
        Ok(Some(token))
    }

    pub(crate) async fn link(&self, token: &Token, now: u64) -> Result<Option<Link>, StoreError> {
        let client = self.client().await?;
        Ok(find_link(&client, token, now).await?.map(|(link, _)| link))
    }

    pub(crate) async fn use_link(
        &self,
        token: &Token,
        new: &NewAccount,
        address: &str,
        now: u64,
    ) -> Result<AccountId, Declined> {
        let change = self.change().await?;
        let (link, _) = find_link(&change, token, now).await?.ok_or(Declined::LinkGone)?;
        let role = match link.purpose {
            LinkFor::SetUp => Role::Admin,
            LinkFor::Join(role) => role,
            LinkFor::Reset(_) => return Err(Declined::LinkGone),
        };
        delete_link(&change, token).await?;
        let id = insert_account(&change, new, role, now).await?;
        let what = format!("joined as {role}, by a link of {}", link.made_by);
        audit(&change, new.email.as_str(), address, &what, new.email.as_str(), now).await?;
        change.commit().await?;
        Ok(id)
    }

    /// Gives the account of a link another password, and ends all its sessions.
    pub(crate) async fn reset_password(
        &self,
        token: &Token,
        password: &str,
        address: &str,
        now: u64,
    ) -> Result<AccountId, Declined> {
        let change = self.change().await?;
        let found = find_link(&change, token, now).await?;
        let Some((Link { purpose: LinkFor::Reset(email), .. }, Some(account))) = found else {
            return Err(Declined::LinkGone);
        };
        delete_link(&change, token).await?;
        let set = "UPDATE accounts SET password = $2 WHERE id = $1";
        change.execute_typed(set, &[text(&account.as_str()), text(&password)]).await?;
        change.execute_typed("DELETE FROM sessions WHERE account = $1", &[text(&account.as_str())]).await?;
        audit(&change, email.as_str(), address, "reset the password", email.as_str(), now).await?;
        change.commit().await?;
        Ok(account)
    }

    pub(crate) async fn invite(
        &self,
        viewer: &Viewer,
        role: Role,
        note: &str,
        life: Duration,
        now: u64,
    ) -> Result<Token, StoreError> {
        let change = self.change().await?;
        let token = insert_link(&change, &LinkFor::Join(role), None, note, viewer.name(), now, life).await?;
        audit_by(&change, viewer, &format!("made an invitation as {role} for"), note, now).await?;
        change.commit().await?;
        Ok(token)
    }

    pub(crate) async fn reset_link(&self, viewer: &Viewer, email: &Email, now: u64) -> Result<Token, Declined> {
        let change = self.change().await?;
        let find = "SELECT id FROM accounts WHERE email = $1";
        let found = change.query_typed_opt(find, &[text(&email.as_str())]).await?;
        let account: AccountId = id(&found.ok_or(Declined::NoSuchAccount)?, 0)?;
        let earlier = "DELETE FROM links WHERE purpose = 'reset' AND account = $1";
        change.execute_typed(earlier, &[text(&account.as_str())]).await?;
        let purpose = LinkFor::Reset(email.clone());
        let token =
            insert_link(&change, &purpose, Some(account), email.as_str(), viewer.name(), now, LINK_LIFE).await?;
        audit_by(&change, viewer, "made a link to reset the password of", email.as_str(), now).await?;
        change.commit().await?;
        Ok(token)
    }

    pub(crate) async fn links(&self, now: u64) -> Result<Vec<Link>, StoreError> {
        let list = format!("{LINK} WHERE expires_at > $1 ORDER BY links.created_at, links.id");
        let rows = self.client().await?.query_typed(&list, &[number(&signed(now))]).await?;
        rows.iter().map(|row| Ok(link(row)?.0)).collect()
    }

    pub(crate) async fn withdraw(&self, viewer: &Viewer, link: LinkId, now: u64) -> Result<bool, StoreError> {
        let change = self.change().await?;
        let delete = "DELETE FROM links WHERE id = $1 RETURNING note";
        let withdrawn = change.query_typed_opt(delete, &[text(&link.as_str())]).await?;
        if let Some(row) = &withdrawn {
            audit_by(&change, viewer, "withdrew the link for", row.try_get(0)?, now).await?;
        }
        change.commit().await?;
        Ok(withdrawn.is_some())
    }
}

const LINK: &str = "SELECT links.id, purpose, links.role, account, email, note, made_by, links.created_at, expires_at
    FROM links LEFT JOIN accounts ON accounts.id = account";

async fn find_link(client: &Client, token: &Token, now: u64) -> Result<Option<(Link, Option<AccountId>)>, StoreError> {
    let find = format!("{LINK} WHERE digest = $1 AND expires_at > $2");
    client
        .query_typed_opt(&find, &[bytes(&token.digest().as_slice()), number(&signed(now))])
        .await?
        .as_ref()
        .map(link)
        .transpose()
}

fn link(row: &Row) -> Result<(Link, Option<AccountId>), StoreError> {
    let (purpose, account) = match row.try_get::<_, &str>(1)? {
        "join" => (LinkFor::Join(parsed(row, 2, "role")?), None),
        "reset" => (LinkFor::Reset(Email::stored(row.try_get(4)?)), Some(id(row, 3)?)),
        _ => (LinkFor::SetUp, None),
    };
    let link = Link {
        id: id(row, 0)?,
        purpose,
        note: row.try_get(5)?,
        made_by: row.try_get(6)?,
        created_at: count(row, 7)?,
        expires_at: count(row, 8)?,
    };
    Ok((link, account))
}

async fn insert_link(
    change: &Transaction,
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
    change.execute_typed("DELETE FROM links WHERE expires_at <= $1", &[number(&signed(now))]).await?;
    let insert = "INSERT INTO links (digest, id, purpose, role, account, note, made_by, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    change
        .execute_typed(
            insert,
            &[
                bytes(&token.digest().as_slice()),
                text(&id.as_str()),
                text(&word),
                text(&role),
                text(&account.map(|account| account.to_string())),
                text(&note),
                text(&made_by),
                number(&signed(now)),
                number(&signed(now + life.as_millis() as u64)),
            ],
        )
        .await?;
    Ok(token)
}

async fn delete_link(change: &Transaction, token: &Token) -> Result<(), StoreError> {
    change.execute_typed("DELETE FROM links WHERE digest = $1", &[bytes(&token.digest().as_slice())]).await?;
    Ok(())
}
