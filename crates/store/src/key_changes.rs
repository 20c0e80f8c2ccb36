//! Keys live: another secret while the one before still works, another expiry, permission, owner, note or project.

use std::time::Duration;

use chat::{ApiKey, KeyId, Timestamp};

use crate::accounts::{AccountError, find_account, require_still_admin};
use crate::id::AccountId;
use crate::keys::{VISIBLE, label};
use crate::project::Project;
use crate::pruning::utc;
use crate::sql::{Transaction, Value, params};
use crate::viewer::Viewer;
use crate::{Store, StoreError};

/// A change of a key that its owner may make, unless noted otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChange {
    /// `None`: never.
    Expiry(Option<Timestamp>),
    /// Whether it has the permission `completions`.
    Completions(bool),
    Note(KeyNote),
    /// `None`: no project.
    Project(Option<Project>),
    /// Gives it to another person, or to nobody; by administrators. What was recorded before stays with who had it then.
    Owner(Option<AccountId>),
}

/// What people write about a key, for themselves: at most 500 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyNote(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a note has at most {} characters", KeyNote::MAX_CHARS)]
pub struct KeyNoteError;

impl KeyNote {
    pub const MAX_CHARS: usize = 500;

    pub fn parse(text: &str) -> Result<Self, KeyNoteError> {
        let kept: String =
            text.trim().chars().filter(|&character| character == '\n' || !character.is_control()).collect();
        if kept.chars().count() <= Self::MAX_CHARS { Ok(Self(kept)) } else { Err(KeyNoteError) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Store {
    /// Gives a key another secret. The one before works for so long; `None` if there is no such key, or it is revoked.
    pub async fn rotate_key(
        &self,
        viewer: &Viewer,
        id: KeyId,
        overlap: Duration,
    ) -> Result<Option<ApiKey>, StoreError> {
        let key = ApiKey::generate_for(id)?;
        let rotate = format!(
            "UPDATE keys SET previous_digest = digest, previous_until = $4, digest = $3
             WHERE id = $2 AND {VISIBLE} AND NOT playground AND revoked_at IS NULL"
        );
        self.change(async |transaction| {
            let (digest, until) = (key.digest(), transaction.now() + overlap);
            let parameters = params![viewer.scope(), &id, digest.as_bytes(), until];
            if transaction.execute(&rotate, parameters).await? == 0 {
                return Ok(None);
            }
            let label = key_label(transaction, id).await?;
            transaction.audit(viewer, "rotated the key", &label).await?;
            Ok(Some(key))
        })
        .await
    }

    /// All of them or none. `false` if there is no such key.
    pub async fn change_key(&self, viewer: &Viewer, id: KeyId, changes: &[KeyChange]) -> Result<bool, AccountError> {
        self.change(async |transaction| {
            let find = format!("SELECT name FROM keys WHERE id = $2 AND {VISIBLE} AND NOT playground");
            let name = transaction.query_optional(&find, params![viewer.scope(), &id], |row| row.get(0)).await?;
            let Some(name) = name.map(|name: String| label(id, &name)) else { return Ok(false) };
            for change in changes {
                let what = change.make(transaction, viewer, id).await?;
                transaction.audit(viewer, &what, &name).await?;
            }
            Ok(true)
        })
        .await
    }
}

impl KeyChange {
    /// Returns what the audit log says.
    async fn make(
        &self,
        transaction: &mut Transaction<'_>,
        viewer: &Viewer,
        id: KeyId,
    ) -> Result<String, AccountError> {
        let (column, value, what) = match self {
            Self::Expiry(None) => {
                ("expires_at", Value::from(None::<Timestamp>), "removed the expiry of the key".to_owned())
            }
            Self::Expiry(Some(at)) => {
                ("expires_at", Value::from(*at), format!("set the expiry to {} of the key", utc(*at)))
            }
            Self::Completions(true) => ("completions", Value::from(true), "allowed completions to the key".into()),
            Self::Completions(false) => ("completions", Value::from(false), "forbade completions to the key".into()),
            Self::Note(note) => ("note", Value::from(note.as_str()), "noted something on the key".to_owned()),
            Self::Project(None) => ("project", Value::from(None::<&str>), "removed the project of the key".into()),
            Self::Project(Some(project)) => {
                ("project", Value::from(project.as_str()), format!("set the project to {project} of the key"))
            }
            Self::Owner(owner) => {
                require_still_admin(transaction, viewer.admin().ok_or(AccountError::NotAdmin)?).await?;
                note_first_owner(transaction, id).await?;
                let email = match owner {
                    Some(owner) => {
                        find_account(transaction, *owner).await?.ok_or(AccountError::NoSuchAccount)?.email.to_string()
                    }
                    None => "nobody".into(),
                };
                ("owner", Value::from(owner.as_ref()), format!("gave to {email} the key"))
            }
        };
        transaction.execute(&format!("UPDATE keys SET {column} = $2 WHERE id = $1"), &[(&id).into(), value]).await?;
        Ok(what)
    }
}

/// From now on the key's sums are kept by person; those so far are its first owner's.
async fn note_first_owner(transaction: &mut Transaction<'_>, id: KeyId) -> Result<(), StoreError> {
    let note = "INSERT INTO given_keys (key_id, first_owner) SELECT id, coalesce(owner, '') FROM keys
        WHERE id = $1 ON CONFLICT (key_id) DO NOTHING";
    transaction.execute(note, params![&id]).await.map(drop)
}

async fn key_label(transaction: &mut Transaction<'_>, id: KeyId) -> Result<String, StoreError> {
    let name: String = transaction.query_value("SELECT name FROM keys WHERE id = $1", params![&id]).await?;
    Ok(label(id, &name))
}
