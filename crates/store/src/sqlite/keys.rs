//! Keys in SQLite.

use chat::{ApiKey, KeyDigest, KeyId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::audit::audit_by;
use super::{Sqlite, id};
use crate::id::AccountId;
use crate::keys::{StoredKey, named};
use crate::viewer::Viewer;
use crate::{Caller, KeyRecord, NewKey, StoreError};

/// The keys that a viewer may see: everyone's, or those with an owner. Playgrounds have ids only for the ledger's sake.
const VISIBLE: &str = "(?1 IS NULL OR owner = ?1)";

impl Sqlite {
    pub(crate) fn find_key(&self, id: KeyId) -> Result<Option<StoredKey>, StoreError> {
        self.with(|connection| {
            let mut find = connection
                .prepare_cached("SELECT digest, completions, expires_at, revoked_at, owner FROM keys WHERE id = ?1")?;
            let found = find.query_row([id.as_str()], |row| {
                Ok(StoredKey {
                    digest: KeyDigest::from_bytes(row.get(0)?),
                    completions: row.get(1)?,
                    expires_at: row.get(2)?,
                    revoked_at: row.get(3)?,
                    owner: owner(row, 4)?,
                })
            });
            Ok(found.optional()?)
        })
    }

    pub(crate) fn insert_key(&self, viewer: &Viewer, key: &ApiKey, new: &NewKey, now: u64) -> Result<(), StoreError> {
        self.change(|transaction| {
            insert(transaction, key, new, viewer.id(), false, now)?;
            audit_by(transaction, viewer, "created the key", &named(key.id(), &new.name), now)
        })
    }

    /// Whoever uses the playground is a caller without a key that anybody could present.
    pub(crate) fn playground(&self, account: AccountId, now: u64) -> Result<Caller, StoreError> {
        let key = self.change(|transaction| {
            let find = "SELECT id FROM keys WHERE owner = ?1 AND playground = 1";
            let found = transaction.query_row(find, [account.as_str()], |row| key_id(row, 0)).optional()?;
            if let Some(found) = found {
                return Ok::<_, StoreError>(found);
            }
            let key = ApiKey::generate()?;
            let new = NewKey { name: "Playground".into(), completions: true, expires_at: None };
            insert(transaction, &key, &new, Some(account), true, now)?;
            Ok(key.id())
        })?;
        Ok(Caller::at_the_playground(key, account))
    }

    pub(crate) fn list_keys(&self, viewer: &Viewer) -> Result<Vec<KeyRecord>, StoreError> {
        self.with(|connection| {
            let mut list = connection
                .prepare(&format!("{RECORD} WHERE {VISIBLE} AND playground = 0 ORDER BY keys.created_at, keys.id"))?;
            Ok(list.query_map([scope(viewer)], record)?.collect::<Result<_, _>>()?)
        })
    }

    pub(crate) fn get_key(&self, viewer: &Viewer, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.with(|connection| {
            let mut get = connection.prepare(&format!("{RECORD} WHERE {VISIBLE} AND keys.id = ?2"))?;
            Ok(get.query_row(params![scope(viewer), id.as_str()], record).optional()?)
        })
    }

    pub(crate) fn has_keys(&self, viewer: &Viewer) -> Result<bool, StoreError> {
        self.with(|connection| {
            let any = format!("SELECT EXISTS (SELECT 1 FROM keys WHERE {VISIBLE} AND playground = 0)");
            Ok(connection.query_row(&any, [scope(viewer)], |row| row.get(0))?)
        })
    }

    pub(crate) fn count_keys(&self) -> Result<u64, StoreError> {
        self.with(|connection| {
            Ok(connection.query_row("SELECT count(*) FROM keys WHERE playground = 0", [], |row| row.get(0))?)
        })
    }

    pub(crate) fn rename_key(&self, viewer: &Viewer, id: KeyId, name: &str, now: u64) -> Result<bool, StoreError> {
        self.change(|transaction| {
            let rename = format!("UPDATE keys SET name = ?3 WHERE id = ?2 AND {VISIBLE} AND playground = 0");
            let renamed = transaction.execute(&rename, params![scope(viewer), id.as_str(), name])? == 1;
            if renamed {
                audit_by(transaction, viewer, "renamed the key", &named(id, name), now)?;
            }
            Ok(renamed)
        })
    }

    pub(crate) fn revoke_key(&self, viewer: &Viewer, id: KeyId, now: u64) -> Result<Option<u64>, StoreError> {
        self.change(|transaction| {
            let find = format!("SELECT revoked_at, name FROM keys WHERE id = ?2 AND {VISIBLE} AND playground = 0");
            let found = transaction.query_row(&find, params![scope(viewer), id.as_str()], |row| {
                Ok((row.get::<_, Option<u64>>(0)?, row.get::<_, String>(1)?))
            });
            let name = match found.optional()? {
                None => return Ok(None),
                Some((Some(before), _)) => return Ok(Some(before)),
                Some((None, name)) => name,
            };
            transaction.execute("UPDATE keys SET revoked_at = ?2 WHERE id = ?1", params![id.as_str(), now])?;
            audit_by(transaction, viewer, "revoked the key", &named(id, &name), now)?;
            Ok(Some(now))
        })
    }
}

fn insert(
    connection: &Connection,
    key: &ApiKey,
    new: &NewKey,
    owner: Option<AccountId>,
    playground: bool,
    now: u64,
) -> Result<(), rusqlite::Error> {
    connection.execute(
        "INSERT INTO keys (id, digest, name, completions, created_at, expires_at, owner, playground)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            key.id().as_str(),
            key.digest().as_bytes(),
            new.name,
            new.completions,
            now,
            new.expires_at,
            owner.as_ref().map(AccountId::as_str),
            playground,
        ],
    )?;
    Ok(())
}

const RECORD: &str =
    "SELECT keys.id, keys.name, completions, keys.created_at, expires_at, revoked_at, last_used_at, email, playground
    FROM keys LEFT JOIN accounts ON accounts.id = owner";

fn record(row: &Row<'_>) -> Result<KeyRecord, rusqlite::Error> {
    Ok(KeyRecord {
        id: key_id(row, 0)?,
        name: row.get(1)?,
        completions: row.get(2)?,
        created_at: row.get(3)?,
        expires_at: row.get(4)?,
        revoked_at: row.get(5)?,
        last_used_at: row.get(6)?,
        owner: row.get(7)?,
        playground: row.get(8)?,
    })
}

/// Whose rows a viewer may see, as a parameter.
pub(super) fn scope(viewer: &Viewer) -> Option<String> {
    viewer.scope().map(|account| account.to_string())
}

/// A column that holds a key's id.
pub(super) fn key_id(row: &Row<'_>, column: usize) -> Result<KeyId, rusqlite::Error> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| rusqlite::Error::InvalidColumnType(column, "key id".into(), rusqlite::types::Type::Text))
}

fn owner(row: &Row<'_>, column: usize) -> Result<Option<AccountId>, rusqlite::Error> {
    match row.get_ref(column)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => id(row, column).map(Some),
    }
}
