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
use crate::{Admin, Store, StoreError};

/// A change of a key that its owner may make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChange {
    /// `None`: never.
    Expiry(Option<Timestamp>),
    /// Whether it has the permission `completions`.
    Completions(bool),
    Note(KeyNote),
    /// `None`: no project.
    Project(Option<Project>),
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

    /// `false` if there is no such key.
    pub async fn change_key(&self, viewer: &Viewer, id: KeyId, change: &KeyChange) -> Result<bool, StoreError> {
        let (column, value, what) = match change {
            KeyChange::Expiry(None) => {
                ("expires_at", Value::from(None::<Timestamp>), "removed the expiry of the key".to_owned())
            }
            KeyChange::Expiry(Some(at)) => {
                ("expires_at", Value::from(*at), format!("set the expiry to {} of the key", utc(*at)))
            }
            KeyChange::Completions(true) => ("completions", Value::from(true), "allowed completions to the key".into()),
            KeyChange::Completions(false) => {
                ("completions", Value::from(false), "forbade completions to the key".into())
            }
            KeyChange::Note(note) => ("note", Value::from(note.as_str()), "noted something on the key".to_owned()),
            KeyChange::Project(None) => ("project", Value::from(None::<&str>), "removed the project of the key".into()),
            KeyChange::Project(Some(project)) => {
                ("project", Value::from(project.as_str()), format!("set the project to {project} of the key"))
            }
        };
        let set = format!("UPDATE keys SET {column} = $3 WHERE id = $2 AND {VISIBLE} AND NOT playground");
        self.change(async |transaction| {
            let is_changed = transaction.execute(&set, &[viewer.scope().into(), (&id).into(), value]).await? == 1;
            if is_changed {
                let label = key_label(transaction, id).await?;
                transaction.audit(viewer, &what, &label).await?;
            }
            Ok(is_changed)
        })
        .await
    }

    /// Gives a key to another person, or to nobody. What was recorded before stays with who had it then. `false` if there
    /// is no such key or person.
    pub async fn set_key_owner(
        &self,
        admin: Admin<'_>,
        id: KeyId,
        owner: Option<AccountId>,
    ) -> Result<bool, AccountError> {
        self.change(async |transaction| {
            require_still_admin(transaction, admin).await?;
            let email = match owner {
                Some(owner) => match find_account(transaction, owner).await? {
                    Some(account) => account.email.to_string(),
                    None => return Ok(false),
                },
                None => "nobody".into(),
            };
            // From now on its sums are kept by person; those so far are its first owner's.
            let note = "INSERT INTO given_keys (key_id, first_owner) SELECT id, coalesce(owner, '') FROM keys
                WHERE id = $1 AND NOT playground ON CONFLICT (key_id) DO NOTHING";
            transaction.execute(note, params![&id]).await?;
            let set = "UPDATE keys SET owner = $2 WHERE id = $1 AND NOT playground";
            if transaction.execute(set, params![&id, owner.as_ref()]).await? == 0 {
                return Ok(false);
            }
            let label = key_label(transaction, id).await?;
            transaction.audit(admin.0, &format!("gave to {email} the key"), &label).await?;
            Ok(true)
        })
        .await
    }
}

async fn key_label(transaction: &mut Transaction<'_>, id: KeyId) -> Result<String, StoreError> {
    let name: String = transaction.query_value("SELECT name FROM keys WHERE id = $1", params![&id]).await?;
    Ok(label(id, &name))
}
