//! What is kept of an API key, and the one rule by which a key is accepted.

use chat::{ApiKey, KeyDigest, KeyId};

use crate::id::AccountId;

/// An authenticated caller. Exists only for a key that was just found active in the database.
#[derive(Debug)]
pub struct Caller {
    key: KeyId,
    owner: Option<AccountId>,
    completions: bool,
}

impl Caller {
    /// The public id of the caller's key.
    pub fn key(&self) -> KeyId {
        self.key
    }

    /// Whose key it is; `None` if it was made at the command line.
    pub fn owner(&self) -> Option<AccountId> {
        self.owner
    }

    /// A signed-in person at the console's playground.
    pub(crate) fn at_the_playground(key: KeyId, account: AccountId) -> Self {
        Self { key, owner: Some(account), completions: true }
    }

    /// Whether the key has the permission `completions`.
    pub fn may_complete(&self) -> bool {
        self.completions
    }
}

/// A key to be made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// What its owner calls it.
    pub name: String,
    /// Whether it may execute completions.
    pub completions: bool,
    /// When it ends by itself, in milliseconds since 1970.
    pub expires_at: Option<u64>,
}

/// A key as its owner sees it later: everything but the secret. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The public id.
    pub id: KeyId,
    /// What its owner calls it.
    pub name: String,
    /// Whether it may execute completions.
    pub completions: bool,
    /// When it was made.
    pub created_at: u64,
    /// When it was last part of a recorded request.
    pub last_used_at: Option<u64>,
    /// When it ends by itself.
    pub expires_at: Option<u64>,
    /// When it was revoked.
    pub revoked_at: Option<u64>,
    /// Whose it is, by e-mail address; `None` if it was made at the command line.
    pub owner: Option<String>,
    /// Whether it stands for its owner's use of the console's playground: nobody has its secret.
    pub playground: bool,
}

/// Whether a key is accepted, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// Accepted.
    Active,
    /// Its time is over.
    Expired,
    /// Its owner has ended it.
    Revoked,
}

impl KeyState {
    fn at(now: u64, expires_at: Option<u64>, revoked_at: Option<u64>) -> Self {
        match (expires_at, revoked_at) {
            (_, Some(_)) => Self::Revoked,
            (Some(expiry), None) if expiry <= now => Self::Expired,
            _ => Self::Active,
        }
    }
}

impl KeyRecord {
    /// The key's state at a time in milliseconds since 1970.
    pub fn state(&self, now_millis: u64) -> KeyState {
        KeyState::at(now_millis, self.expires_at, self.revoked_at)
    }
}

/// What the database holds of a key that a caller presents.
pub(crate) struct StoredKey {
    pub(crate) digest: KeyDigest,
    pub(crate) completions: bool,
    pub(crate) expires_at: Option<u64>,
    pub(crate) revoked_at: Option<u64>,
    pub(crate) owner: Option<AccountId>,
}

/// Accepts a key or not. Unknown, expired and revoked keys take the same steps, so that time tells nothing apart.
pub(crate) fn verify(presented: &ApiKey, stored: Option<StoredKey>, now: u64) -> Option<Caller> {
    let known = stored.is_some();
    let nobody = StoredKey {
        digest: KeyDigest::from_bytes([0; 32]),
        completions: false,
        expires_at: None,
        revoked_at: None,
        owner: None,
    };
    let stored = stored.unwrap_or(nobody);
    let same = stored.digest.matches(&presented.digest());
    let active = KeyState::at(now, stored.expires_at, stored.revoked_at) == KeyState::Active;
    (known & same & active).then(|| Caller {
        key: presented.id(),
        owner: stored.owner,
        completions: stored.completions,
    })
}

/// How the audit log names a key.
pub(crate) fn named(id: KeyId, name: &str) -> String {
    format!("{name} ({id})")
}
