//! API keys, and the rule by which a key is accepted.

use chat::{ApiKey, KeyDigest, KeyId, KeyName, Timestamp};

use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::sql::{Connection, Row, Transaction, Value, params};
use crate::identity::accounts::AccountError;
use crate::identity::sessions::require_valid;
use crate::values::{AccountId, Project, Viewer};
use crate::{Keys, StoreError};

/// An authenticated caller. Exists only for a key that the database has just confirmed as active.
pub struct Caller {
    key: KeyId,
    owner: Option<AccountId>,
    project: Option<Project>,
    completions: bool,
    limits_version: u64,
    /// The digest of the presented key; `None` in the playground, whose key has no secret.
    digest: Option<KeyDigest>,
}

impl Caller {
    pub fn key(&self) -> KeyId {
        self.key
    }

    /// `None` for a key that was created at the command line.
    pub fn owner(&self) -> Option<AccountId> {
        self.owner
    }

    /// The project of the key, for which the request counts.
    pub fn project(&self) -> Option<&Project> {
        self.project.as_ref()
    }

    /// The version of the limits when the key was looked up.
    pub(crate) fn limits_version(&self) -> u64 {
        self.limits_version
    }

    /// The client that slots and memory are counted for.
    pub fn client(&self) -> Client {
        Client { person: self.owner, key: self.key }
    }

    /// Whether the key has the permission `completions`.
    pub fn may_complete(&self) -> bool {
        self.completions
    }
}

/// A key and its owner, by which slots and memory are shared. A key without an owner counts separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    pub person: Option<AccountId>,
    pub key: KeyId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Party {
    Person(AccountId),
    Key(KeyId),
}

impl admission::Client for Client {
    type Party = Party;

    fn parties(&self) -> impl Iterator<Item = Party> {
        self.person.map(Party::Person).into_iter().chain([Party::Key(self.key)])
    }
}

#[derive(Debug, Clone)]
pub struct NewKey {
    pub name: KeyName,
    pub completions: bool,
    pub expires_at: Option<Timestamp>,
    pub project: Option<Project>,
}

/// A key without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    pub id: KeyId,
    pub name: String,
    pub completions: bool,
    pub created_at: Timestamp,
    /// When it was last used in a recorded request.
    pub last_used_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// The owner's e-mail address; `None` for a key that was created at the command line.
    pub owner: Option<String>,
    /// Whether it is the key of its owner's playground in the console; its secret was discarded.
    pub playground: bool,
    /// Until when the previous secret works.
    pub previous_until: Option<Timestamp>,
    pub note: String,
    pub project: Option<Project>,
    /// Only an administrator can allow completions again.
    pub admin_forbids_completions: bool,
    /// The latest expiry that the owner can choose, set by an administrator.
    pub admin_expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    Active,
    Expired,
    Revoked,
}

impl KeyState {
    fn at(now: Timestamp, expires_at: Option<Timestamp>, revoked_at: Option<Timestamp>) -> Self {
        match (expires_at, revoked_at) {
            (_, Some(_)) => Self::Revoked,
            (Some(expiry), None) if expiry <= now => Self::Expired,
            _ => Self::Active,
        }
    }
}

impl KeyRecord {
    pub fn state(&self, now: Timestamp) -> KeyState {
        KeyState::at(now, self.expires_at, self.revoked_at)
    }
}

impl Keys<'_> {
    /// `None` for an unknown, expired or revoked key.
    ///
    /// Queries the database every time, so that a key revoked by any process is refused from the next request on.
    pub async fn authenticate(self, key: &ApiKey) -> Result<Option<Caller>, StoreError> {
        self.find_caller(key.id(), Some(key.digest())).await
    }

    /// The same caller with the database's current values; `None` if its key is no longer accepted.
    pub async fn authenticate_again(self, caller: &Caller) -> Result<Option<Caller>, StoreError> {
        self.find_caller(caller.key, caller.digest).await
    }

    async fn find_caller(self, key: KeyId, digest: Option<KeyDigest>) -> Result<Option<Caller>, StoreError> {
        let found = self.0.keys.find(key).await?;
        let caller = |StoredKey { owner, project, completions, limits_version, .. }| Caller {
            key,
            owner,
            project,
            completions,
            limits_version,
            digest,
        };
        Ok(verify(digest, found, self.now()).map(caller))
    }

    /// Creates a key for the viewer. A person may have at most `max_per_person` active keys. The plaintext is returned only
    /// here, and not stored.
    pub async fn create(self, viewer: &Viewer, new: NewKey, max_per_person: u64) -> Result<ApiKey, AccountError> {
        let key = ApiKey::generate().map_err(StoreError::from)?;
        self.change(viewer, async |transaction| {
            if let Some(owner) = viewer.id() {
                let now = transaction.now();
                if transaction.query_value::<u64>(COUNT_ACTIVE, params![&owner, now]).await? >= max_per_person {
                    return Err(AccountError::TooManyKeys(max_per_person));
                }
            }
            insert(transaction, &key, &new, viewer, false).await?;
            let subject = AuditSubject::key(key.id(), new.name.as_str());
            Ok(transaction.audit(viewer, AuditAction::CreatedKey, &subject).await?)
        })
        .await?;
        Ok(key)
    }

    /// The viewer's keys, or everyone's for an administrator; the newest last.
    pub async fn list(self, viewer: &Viewer) -> Result<Vec<KeyRecord>, StoreError> {
        let all = format!("{VISIBLE} AND NOT playground ORDER BY keys.created_at, keys.id");
        self.records(&all, params![viewer.scope()]).await
    }

    pub async fn find(self, viewer: &Viewer, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        let found = self.records(&format!("{VISIBLE} AND keys.id = $2"), params![viewer.scope(), &id]).await?;
        Ok(found.into_iter().next())
    }

    /// Reads the keys that meet a condition, which may be followed by an order.
    pub(crate) async fn records(self, condition: &str, parameters: &[Value<'_>]) -> Result<Vec<KeyRecord>, StoreError> {
        // Before the keys, in case uses are folded in between.
        let uses = self.0.usage().unfolded_uses().await?;
        let select = format!("{SELECT_RECORD} WHERE {condition}");
        let mut keys = self.connection().await?.query(&select, parameters, record).await?;
        for key in &mut keys {
            key.last_used_at = key.last_used_at.max(uses.get(&key.id).copied());
        }
        Ok(keys)
    }

    pub async fn exist(self, viewer: &Viewer) -> Result<bool, StoreError> {
        let any = format!("SELECT EXISTS (SELECT 1 FROM keys WHERE {VISIBLE} AND NOT playground)");
        self.connection().await?.query_value(&any, params![viewer.scope()]).await
    }

    /// Including revoked ones.
    pub async fn count(self) -> Result<u64, StoreError> {
        self.connection().await?.query_value("SELECT count(*) FROM keys WHERE NOT playground", &[]).await
    }

    /// `false` if there is no such key.
    pub async fn rename(self, viewer: &Viewer, id: KeyId, name: &KeyName) -> Result<bool, StoreError> {
        self.change(viewer, async |transaction| {
            let Some(from) = find_name(transaction, viewer, id).await? else { return Ok(false) };
            let rename = "UPDATE keys SET name = $2 WHERE id = $1";
            transaction.execute(rename, params![&id, name.as_str()]).await?;
            let subject = AuditSubject::key(id, name.as_str());
            transaction.audit(viewer, AuditAction::RenamedKey { from }, &subject).await?;
            Ok(true)
        })
        .await
    }

    /// The time at which the key was revoked, now or earlier; `None` if there is no such key.
    pub async fn revoke(self, viewer: &Viewer, id: KeyId) -> Result<Option<Timestamp>, StoreError> {
        let find = format!("SELECT revoked_at, name FROM keys WHERE id = $2 AND {VISIBLE} AND NOT playground");
        self.change(viewer, async |transaction| {
            let read = |row: &Row<'_>| Ok((row.get_optional(0)?, row.get::<String>(1)?));
            let name = match transaction.query_optional(&find, params![viewer.scope(), &id], read).await? {
                None => return Ok(None),
                Some((Some(before), _)) => return Ok(Some(before)),
                Some((None, name)) => name,
            };
            let now = transaction.now();
            transaction.execute("UPDATE keys SET revoked_at = $2 WHERE id = $1", params![&id, now]).await?;
            transaction.audit(viewer, AuditAction::RevokedKey, &AuditSubject::key(id, &name)).await?;
            Ok(Some(now))
        })
        .await
    }

    /// The signed-in viewer as a caller of the API, for the console's playground. No client can present that caller's key.
    pub async fn playground_caller(self, viewer: &Viewer) -> Result<Option<Caller>, StoreError> {
        let Some(account) = viewer.id() else { return Ok(None) };
        let mut connection = self.connection().await?;
        require_valid(&mut connection, viewer, self.now()).await?;
        // Read without the write lock, which is needed only once, to create the key.
        let found = find_playground(&mut connection, account).await?;
        drop(connection);
        let key = match found {
            Some(found) => found,
            None => self.create_playground(viewer, account).await?,
        };
        self.find_caller(key, None).await
    }

    async fn create_playground(self, viewer: &Viewer, account: AccountId) -> Result<KeyId, StoreError> {
        self.change(viewer, async |transaction| {
            if let Some(found) = find_playground(transaction, account).await? {
                return Ok(found);
            }
            let key = ApiKey::generate()?;
            let new = NewKey { name: playground_name(), completions: true, expires_at: None, project: None };
            insert(transaction, &key, &new, viewer, true).await?;
            Ok(key.id())
        })
        .await
    }
}

async fn find_playground(connection: &mut Connection<'_>, account: AccountId) -> Result<Option<KeyId>, StoreError> {
    let find = "SELECT id FROM keys WHERE owner = $1 AND playground";
    connection.query_optional(find, params![&account], |row| row.get(0)).await
}

fn playground_name() -> KeyName {
    KeyName::parse("Playground").expect("this is a valid name")
}

/// Revokes a person's unrevoked keys.
pub(crate) async fn revoke_keys(transaction: &mut Transaction<'_>, of: AccountId) -> Result<u64, StoreError> {
    let now = transaction.now();
    let revoke = "UPDATE keys SET revoked_at = $2 WHERE owner = $1 AND revoked_at IS NULL AND NOT playground";
    transaction.execute(revoke, params![&of, now]).await
}

/// The number of active keys of the person `$1` at the time `$2`.
pub(crate) const COUNT_ACTIVE: &str = "SELECT count(*) FROM keys WHERE owner = $1 AND revoked_at IS NULL
    AND NOT playground AND (expires_at IS NULL OR expires_at > $2)";

/// The keys that a viewer may see: `$1` is the owner, or NULL for everyone's.
pub(crate) const VISIBLE: &str = "($1 IS NULL OR owner = $1)";

const SELECT_RECORD: &str =
    "SELECT keys.id, keys.name, completions, keys.created_at, expires_at, revoked_at, last_used_at, email, playground,
        previous_until, note, project, admin_forbids_completions, admin_expires_at
    FROM keys LEFT JOIN accounts ON accounts.id = owner";

fn record(row: &Row<'_>) -> Result<KeyRecord, StoreError> {
    Ok(KeyRecord {
        id: row.get(0)?,
        name: row.get(1)?,
        completions: row.get(2)?,
        created_at: row.get(3)?,
        expires_at: row.get_optional(4)?,
        revoked_at: row.get_optional(5)?,
        last_used_at: row.get_optional(6)?,
        owner: row.get_optional(7)?,
        playground: row.get(8)?,
        previous_until: row.get_optional(9)?,
        note: row.get(10)?,
        project: row.get_optional(11)?,
        admin_forbids_completions: row.get(12)?,
        admin_expires_at: row.get_optional(13)?,
    })
}

async fn insert(
    transaction: &mut Transaction<'_>,
    key: &ApiKey,
    new: &NewKey,
    viewer: &Viewer,
    playground: bool,
) -> Result<(), StoreError> {
    let insert = "INSERT INTO keys (id, digest, name, completions, created_at, expires_at, owner, playground, project,
            admin_forbids_completions, admin_expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let (id, digest, now, owner) = (key.id(), key.digest(), transaction.now(), viewer.id());
    let by_admin = viewer.admin().is_some();
    let (name, project) = (new.name.as_str(), new.project.as_ref().map(Project::as_str));
    let parameters = params![
        &id,
        digest.as_bytes(),
        name,
        new.completions,
        now,
        new.expires_at,
        owner.as_ref(),
        playground,
        project,
        by_admin && !new.completions,
        new.expires_at.filter(|_| by_admin)
    ];
    transaction.execute(insert, parameters).await?;
    Ok(())
}

/// The name of a key that the viewer may change.
pub(crate) async fn find_name(
    transaction: &mut Transaction<'_>,
    viewer: &Viewer,
    id: KeyId,
) -> Result<Option<String>, StoreError> {
    let find = format!("SELECT name FROM keys WHERE id = $2 AND {VISIBLE} AND NOT playground");
    transaction.query_optional(&find, params![viewer.scope(), &id], |row| row.get(0)).await
}

/// SQLite's query for every request; kept prepared.
pub(crate) const FIND_KEY: &str = "SELECT digest, completions, expires_at, revoked_at, owner,
        (SELECT version FROM limits_version), previous_digest, previous_until, project FROM keys WHERE id = $1";

/// PostgreSQL's query for several requests at a time; also kept prepared.
pub(crate) const FIND_KEYS: &str =
    "SELECT digest, completions, expires_at, revoked_at, owner, version, previous_digest, previous_until,
        project, keys.id FROM keys, limits_version
    WHERE keys.id = ANY($1)";

#[derive(Clone)]
pub(crate) struct StoredKey {
    pub(crate) digest: KeyDigest,
    pub(crate) completions: bool,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
    pub(crate) owner: Option<AccountId>,
    pub(crate) limits_version: u64,
    /// The digest of the previous secret, and until when it works.
    pub(crate) previous: Option<(KeyDigest, Timestamp)>,
    pub(crate) project: Option<Project>,
}

impl StoredKey {
    /// Reads the columns of `FIND_KEY`.
    pub(crate) fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            digest: KeyDigest::from_bytes(row.get(0)?),
            completions: row.get(1)?,
            expires_at: row.get_optional(2)?,
            revoked_at: row.get_optional(3)?,
            owner: row.get_optional(4)?,
            limits_version: row.get(5)?,
            previous: row.get_optional(6)?.map(KeyDigest::from_bytes).zip(row.get_optional(7)?),
            project: row.get_optional(8)?,
        })
    }
}

/// Unknown, expired and revoked keys take the same steps, so that timing does not distinguish them.
fn verify(presented: Option<KeyDigest>, stored: Option<StoredKey>, now: Timestamp) -> Option<StoredKey> {
    let known = stored.is_some();
    let no_digest = KeyDigest::from_bytes([0; 32]);
    let stored = stored.unwrap_or(StoredKey {
        digest: no_digest,
        completions: false,
        expires_at: None,
        revoked_at: None,
        owner: None,
        limits_version: 0,
        previous: None,
        project: None,
    });
    let (previous, until) = stored.previous.unwrap_or((no_digest, Timestamp::default()));
    let same =
        presented.is_none_or(|digest| stored.digest.matches(&digest) | (previous.matches(&digest) & (now < until)));
    let active = KeyState::at(now, stored.expires_at, stored.revoked_at) == KeyState::Active;
    (known & same & active).then_some(stored)
}
