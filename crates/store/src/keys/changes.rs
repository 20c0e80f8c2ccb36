//! Key updates: a new secret while the previous one still works, and a new expiry, permission, owner, note or project.
//! Only an administrator can lift an administrator's restriction; the owner may restrict a key further, and lift that.

use std::time::Duration;

use chat::{ApiKey, KeyId, Timestamp};

use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::sql::{Row, Transaction, Value, params};
use crate::identity::accounts::{AccountError, find_account};
use crate::identity::confirmations::require_confirmed;
use crate::keys::key::{VISIBLE, find_name};
use crate::values::{AccountId, Project, Viewer};
use crate::{Keys, StoreError};

/// A change of a key that its owner may make, unless noted otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChange {
    /// `None`: never expires.
    Expiry(Option<Timestamp>),
    /// Whether it has the permission `completions`.
    Completions(bool),
    Note(KeyNote),
    /// `None`: no project.
    Project(Option<Project>),
    /// Gives it to another person, or to none; for administrators. Earlier use still counts for the owner at that time.
    Owner(Option<AccountId>),
}

/// A free text about a key, of at most 500 characters.
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

impl Keys<'_> {
    /// Gives a key a new secret. The previous one works for `overlap`. `None` if there is no such key, or it is revoked.
    pub async fn rotate(self, viewer: &Viewer, id: KeyId, overlap: Duration) -> Result<Option<ApiKey>, StoreError> {
        let key = ApiKey::generate_for(id)?;
        let rotate = format!(
            "UPDATE keys SET previous_digest = digest, previous_until = $4, digest = $3
             WHERE id = $2 AND {VISIBLE} AND NOT playground AND revoked_at IS NULL"
        );
        self.change(viewer, async |transaction| {
            let others = "SELECT count(*) > 0 FROM keys WHERE id = $1 AND (owner IS NULL OR owner <> $2)";
            let me = viewer.id();
            if me.is_some() && transaction.query_value(others, params![&id, me.as_ref()]).await? {
                require_confirmed(transaction, viewer).await?;
            }
            let (digest, until) = (key.digest(), transaction.now() + overlap);
            let parameters = params![viewer.scope(), &id, digest.as_bytes(), until];
            if transaction.execute(&rotate, parameters).await? == 0 {
                return Ok(None);
            }
            let name = find_name(transaction, viewer, id).await?.unwrap_or_default();
            let action = AuditAction::RotatedKey { overlap_seconds: overlap.as_secs() };
            transaction.audit(viewer, action, &AuditSubject::key(id, &name)).await?;
            Ok(Some(key))
        })
        .await
    }

    /// The previous secret is refused from now on; `false` if there is no such key, or only one secret works.
    pub async fn end_overlap(self, viewer: &Viewer, id: KeyId) -> Result<bool, StoreError> {
        self.change(viewer, async |transaction| {
            let Some(name) = find_name(transaction, viewer, id).await? else { return Ok(false) };
            let (now, end) = (
                transaction.now(),
                "UPDATE keys SET previous_digest = NULL, previous_until = NULL WHERE id = $1 AND previous_until > $2",
            );
            if transaction.execute(end, params![&id, now]).await? == 0 {
                return Ok(false);
            }
            transaction.audit(viewer, AuditAction::EndedOverlap, &AuditSubject::key(id, &name)).await?;
            Ok(true)
        })
        .await
    }

    /// Makes all changes or none. `false` if there is no such key.
    pub async fn update(self, viewer: &Viewer, id: KeyId, changes: &[KeyChange]) -> Result<bool, AccountError> {
        self.change(viewer, async |transaction| {
            let Some(name) = find_name(transaction, viewer, id).await? else { return Ok(false) };
            let subject = AuditSubject::key(id, &name);
            for change in changes {
                change.require_allowed(transaction, viewer, id).await?;
                let action = change.make(transaction, id).await?;
                transaction.audit(viewer, action, &subject).await?;
            }
            Ok(true)
        })
        .await
    }
}

impl KeyChange {
    /// Records an administrator's restriction, or checks that the owner's change stays within it.
    async fn require_allowed(
        &self,
        transaction: &mut Transaction<'_>,
        viewer: &Viewer,
        id: KeyId,
    ) -> Result<(), AccountError> {
        if viewer.admin().is_some() {
            let (column, value) = match self {
                Self::Expiry(at) => ("admin_expires_at", Value::from(*at)),
                Self::Completions(allowed) => ("admin_forbids_completions", Value::from(!allowed)),
                // An administrator could give the key to themselves and then rotate it without confirmation.
                Self::Owner(_) => return Ok(require_confirmed(transaction, viewer).await?),
                Self::Note(_) | Self::Project(_) => return Ok(()),
            };
            let bound = format!("UPDATE keys SET {column} = $2 WHERE id = $1");
            transaction.execute(&bound, &[(&id).into(), value]).await?;
            return Ok(());
        }
        let find = "SELECT admin_forbids_completions, admin_expires_at FROM keys WHERE id = $1";
        let read = |row: &Row<'_>| Ok((row.get::<bool>(0)?, row.get_optional::<Timestamp>(1)?));
        let bounds = transaction.query_optional(find, params![&id], read).await?;
        let (forbids_completions, latest) = bounds.ok_or(StoreError::Corrupt("key"))?;
        let is_allowed = match self {
            Self::Expiry(at) => latest.is_none_or(|latest| at.is_some_and(|at| at <= latest)),
            Self::Completions(allowed) => !(*allowed && forbids_completions),
            Self::Owner(_) => return Err(AccountError::NotAdmin),
            Self::Note(_) | Self::Project(_) => true,
        };
        if is_allowed { Ok(()) } else { Err(AccountError::SetByAdmin) }
    }

    /// Returns the action for the audit log.
    async fn make(&self, transaction: &mut Transaction<'_>, id: KeyId) -> Result<AuditAction, AccountError> {
        let (column, value, action) = match self {
            Self::Expiry(None) => ("expires_at", Value::from(None::<Timestamp>), AuditAction::RemovedKeyExpiry),
            Self::Expiry(Some(at)) => ("expires_at", Value::from(*at), AuditAction::SetKeyExpiry { at: *at }),
            Self::Completions(true) => ("completions", Value::from(true), AuditAction::AllowedCompletions),
            Self::Completions(false) => ("completions", Value::from(false), AuditAction::ForbadeCompletions),
            Self::Note(note) => ("note", Value::from(note.as_str()), AuditAction::ChangedKeyNote),
            Self::Project(None) => ("project", Value::from(None::<&str>), AuditAction::RemovedKeyFromProject),
            Self::Project(Some(project)) => {
                let action = AuditAction::MovedKey { project: project.to_string() };
                ("project", Value::from(project.as_str()), action)
            }
            Self::Owner(owner) => {
                let to = match owner {
                    Some(owner) => {
                        let found = find_account(transaction, *owner).await?.ok_or(AccountError::NoSuchAccount)?;
                        Some(found.email.to_string())
                    }
                    None => None,
                };
                ("owner", Value::from(owner.as_ref()), AuditAction::GaveKey { to })
            }
        };
        transaction.execute(&format!("UPDATE keys SET {column} = $2 WHERE id = $1"), &[(&id).into(), value]).await?;
        Ok(action)
    }
}
