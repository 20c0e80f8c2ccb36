//! Keys in SQLite.

use chat::{ApiKey, KeyDigest, KeyId};
use rusqlite::{OptionalExtension, Row, params};

use super::Sqlite;
use crate::keys::StoredKey;
use crate::rollup::Span;
use crate::{KeyRecord, NewKey, StoreError};

impl Sqlite {
    pub(crate) fn find_key(&self, id: KeyId) -> Result<Option<StoredKey>, StoreError> {
        self.with(|connection| {
            let mut find = connection
                .prepare_cached("SELECT digest, completions, expires_at, revoked_at FROM keys WHERE id = ?1")?;
            let found = find.query_row([id.as_str()], |row| {
                Ok(StoredKey {
                    digest: KeyDigest::from_bytes(row.get(0)?),
                    completions: row.get(1)?,
                    expires_at: row.get(2)?,
                    revoked_at: row.get(3)?,
                })
            });
            Ok(found.optional()?)
        })
    }

    pub(crate) fn insert_key(&self, key: &ApiKey, new: &NewKey, now: u64) -> Result<(), StoreError> {
        self.with(|connection| {
            connection.execute(
                "INSERT INTO keys (id, digest, name, completions, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![key.id().as_str(), key.digest().as_bytes(), new.name, new.completions, now, new.expires_at],
            )?;
            Ok(())
        })
    }

    pub(crate) fn list_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.with(|connection| {
            let mut list = connection.prepare(
                "SELECT id, name, completions, created_at, expires_at, revoked_at,
                    (SELECT max(last_at) FROM rollups WHERE span = ?1 AND key_id = keys.id AND start =
                        (SELECT max(start) FROM rollups WHERE span = ?1 AND key_id = keys.id))
                 FROM keys ORDER BY created_at, id",
            )?;
            let rows = list.query_map([Span::Day.seconds()], |row| {
                Ok(KeyRecord {
                    id: key_id(row, 0)?,
                    name: row.get(1)?,
                    completions: row.get(2)?,
                    created_at: row.get(3)?,
                    expires_at: row.get(4)?,
                    revoked_at: row.get(5)?,
                    last_used_at: row.get(6)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub(crate) fn count_keys(&self) -> Result<u64, StoreError> {
        self.with(|connection| Ok(connection.query_row("SELECT count(*) FROM keys", [], |row| row.get(0))?))
    }

    pub(crate) fn rename_key(&self, id: KeyId, name: &str) -> Result<bool, StoreError> {
        self.with(|connection| {
            let renamed = connection.execute("UPDATE keys SET name = ?2 WHERE id = ?1", params![id.as_str(), name])?;
            Ok(renamed == 1)
        })
    }

    pub(crate) fn revoke_key(&self, id: KeyId, now: u64) -> Result<Option<u64>, StoreError> {
        self.with(|connection| {
            let mut revoke = connection
                .prepare("UPDATE keys SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1 RETURNING revoked_at")?;
            Ok(revoke.query_row(params![id.as_str(), now], |row| row.get(0)).optional()?)
        })
    }
}

/// A column that holds a key's id.
pub(super) fn key_id(row: &Row<'_>, column: usize) -> Result<KeyId, rusqlite::Error> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| rusqlite::Error::InvalidColumnType(column, "key id".into(), rusqlite::types::Type::Text))
}
