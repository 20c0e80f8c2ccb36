//! Keys in PostgreSQL.

use chat::{ApiKey, KeyDigest, KeyId};
use tokio_postgres::Row;

use super::audit::audit_by;
use super::{Postgres, Transaction, bytes, count, count_if_any, flag, id, key_id, number, scope, signed, text};
use crate::id::AccountId;
use crate::keys::{StoredKey, named};
use crate::viewer::Viewer;
use crate::{Caller, KeyRecord, NewKey, StoreError};

/// What is looked up for every request.
pub(super) const FIND_KEY: &str = "SELECT digest, completions, expires_at, revoked_at, owner FROM keys WHERE id = $1";

/// The keys that a viewer may see: everyone's, or those with an owner. Playgrounds have ids only for the ledger's sake.
const VISIBLE: &str = "($1 IS NULL OR owner = $1)";

impl Postgres {
    pub(crate) async fn find_key(&self, id: KeyId) -> Result<Option<StoredKey>, StoreError> {
        let Some(row) = self.keys.find_key(id.as_str()).await? else { return Ok(None) };
        let digest = row.try_get::<_, &[u8]>(0)?.try_into().map_err(|_| StoreError::Corrupt("digest"))?;
        Ok(Some(StoredKey {
            digest: KeyDigest::from_bytes(digest),
            completions: row.try_get(1)?,
            expires_at: count_if_any(&row, 2)?,
            revoked_at: count_if_any(&row, 3)?,
            owner: owner(&row, 4)?,
        }))
    }

    pub(crate) async fn insert_key(
        &self,
        viewer: &Viewer,
        key: &ApiKey,
        new: &NewKey,
        now: u64,
    ) -> Result<(), StoreError> {
        let change = self.change().await?;
        insert(&change, key, new, viewer.id(), false, now).await?;
        audit_by(&change, viewer, "created the key", &named(key.id(), &new.name), now).await?;
        change.commit().await
    }

    /// Whoever uses the playground is a caller without a key that anybody could present.
    pub(crate) async fn playground(&self, account: AccountId, now: u64) -> Result<Caller, StoreError> {
        let change = self.change().await?;
        let find = "SELECT id FROM keys WHERE owner = $1 AND playground";
        let found = change.query_typed_opt(find, &[text(&account.as_str())]).await?;
        let key = match found {
            Some(row) => key_id(&row, 0)?,
            None => {
                let key = ApiKey::generate()?;
                let new = NewKey { name: "Playground".into(), completions: true, expires_at: None };
                insert(&change, &key, &new, Some(account), true, now).await?;
                key.id()
            }
        };
        change.commit().await?;
        Ok(Caller::at_the_playground(key, account))
    }

    pub(crate) async fn list_keys(&self, viewer: &Viewer) -> Result<Vec<KeyRecord>, StoreError> {
        let list = format!("{RECORD} WHERE {VISIBLE} AND NOT playground ORDER BY keys.created_at, keys.id");
        let rows = self.client().await?.query_typed(&list, &[text(&scope(viewer))]).await?;
        rows.iter().map(record).collect()
    }

    pub(crate) async fn get_key(&self, viewer: &Viewer, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        let get = format!("{RECORD} WHERE {VISIBLE} AND keys.id = $2");
        let row = self.client().await?.query_typed_opt(&get, &[text(&scope(viewer)), text(&id.as_str())]).await?;
        row.as_ref().map(record).transpose()
    }

    pub(crate) async fn has_keys(&self, viewer: &Viewer) -> Result<bool, StoreError> {
        let any = format!("SELECT EXISTS (SELECT 1 FROM keys WHERE {VISIBLE} AND NOT playground)");
        Ok(self.client().await?.query_typed_one(&any, &[text(&scope(viewer))]).await?.try_get(0)?)
    }

    pub(crate) async fn count_keys(&self) -> Result<u64, StoreError> {
        let client = self.client().await?;
        count(&client.query_typed_one("SELECT count(*) FROM keys WHERE NOT playground", &[]).await?, 0)
    }

    pub(crate) async fn rename_key(
        &self,
        viewer: &Viewer,
        id: KeyId,
        name: &str,
        now: u64,
    ) -> Result<bool, StoreError> {
        let change = self.change().await?;
        let rename = format!("UPDATE keys SET name = $3 WHERE id = $2 AND {VISIBLE} AND NOT playground");
        let renamed =
            change.execute_typed(&rename, &[text(&scope(viewer)), text(&id.as_str()), text(&name)]).await? == 1;
        if renamed {
            audit_by(&change, viewer, "renamed the key", &named(id, name), now).await?;
        }
        change.commit().await?;
        Ok(renamed)
    }

    pub(crate) async fn revoke_key(&self, viewer: &Viewer, id: KeyId, now: u64) -> Result<Option<u64>, StoreError> {
        let change = self.change().await?;
        let find = format!("SELECT revoked_at, name FROM keys WHERE id = $2 AND {VISIBLE} AND NOT playground");
        let Some(row) = change.query_typed_opt(&find, &[text(&scope(viewer)), text(&id.as_str())]).await? else {
            return Ok(None);
        };
        let mut revoked_at = count_if_any(&row, 0)?;
        if revoked_at.is_none() {
            let revoke = "UPDATE keys SET revoked_at = $2 WHERE id = $1";
            change.execute_typed(revoke, &[text(&id.as_str()), number(&signed(now))]).await?;
            audit_by(&change, viewer, "revoked the key", &named(id, row.try_get(1)?), now).await?;
            revoked_at = Some(now);
        }
        change.commit().await?;
        Ok(revoked_at)
    }
}

async fn insert(
    change: &Transaction,
    key: &ApiKey,
    new: &NewKey,
    owner: Option<AccountId>,
    playground: bool,
    now: u64,
) -> Result<(), StoreError> {
    let insert = "INSERT INTO keys (id, digest, name, completions, created_at, expires_at, owner, playground)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    change
        .execute_typed(
            insert,
            &[
                text(&key.id().to_string()),
                bytes(&key.digest().as_bytes().as_slice()),
                text(&new.name),
                flag(&new.completions),
                number(&signed(now)),
                number(&new.expires_at.map(signed)),
                text(&owner.map(|owner| owner.to_string())),
                flag(&playground),
            ],
        )
        .await?;
    Ok(())
}

const RECORD: &str =
    "SELECT keys.id, keys.name, completions, keys.created_at, expires_at, revoked_at, last_used_at, email, playground
    FROM keys LEFT JOIN accounts ON accounts.id = owner";

fn record(row: &Row) -> Result<KeyRecord, StoreError> {
    Ok(KeyRecord {
        id: key_id(row, 0)?,
        name: row.try_get(1)?,
        completions: row.try_get(2)?,
        created_at: count(row, 3)?,
        expires_at: count_if_any(row, 4)?,
        revoked_at: count_if_any(row, 5)?,
        last_used_at: count_if_any(row, 6)?,
        owner: row.try_get(7)?,
        playground: row.try_get(8)?,
    })
}

fn owner(row: &Row, column: usize) -> Result<Option<AccountId>, StoreError> {
    match row.try_get::<_, Option<&str>>(column)? {
        None => Ok(None),
        Some(_) => id(row, column).map(Some),
    }
}
