//! The tables, as a list of migrations. A released migration never changes.

use rusqlite::{Connection, TransactionBehavior};

use crate::StoreError;

const MIGRATIONS: &[&str] = &[
    // Times are milliseconds since 1970 unless their name says otherwise. `requests` has one B-tree, by id: ids are
    // ordered by time, so it grows at its end. A roll-up with the key '' is over all keys.
    "CREATE TABLE keys (
        id TEXT NOT NULL PRIMARY KEY,
        digest BLOB NOT NULL,
        name TEXT NOT NULL,
        completions INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        revoked_at INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE requests (
        id BLOB NOT NULL PRIMARY KEY CHECK (length(id) = 16),
        key_id TEXT NOT NULL,
        status INTEGER NOT NULL,
        code TEXT,
        prompt_tokens INTEGER,
        completion_tokens INTEGER,
        total_tokens INTEGER,
        queue_us INTEGER,
        search_us INTEGER,
        inference_us INTEGER,
        total_us INTEGER NOT NULL,
        commit_id INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE commits (
        id INTEGER NOT NULL PRIMARY KEY,
        persisted_at_us INTEGER
    ) STRICT;
    CREATE TABLE rollups (
        span INTEGER NOT NULL,
        key_id TEXT NOT NULL,
        start INTEGER NOT NULL,
        status INTEGER NOT NULL,
        code TEXT NOT NULL,
        requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        prompt_measured INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        completion_measured INTEGER NOT NULL,
        total_tokens INTEGER NOT NULL,
        total_measured INTEGER NOT NULL,
        last_at INTEGER NOT NULL,
        latencies BLOB NOT NULL,
        PRIMARY KEY (span, key_id, start, status, code)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE probe (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        filler BLOB NOT NULL
    ) STRICT;",
    // Accounts. From now on a roll-up's `key_id` is a scope: '' for everyone, '@' and an account's id, or a key's id;
    // and its span is always the hour. Sums by key have their own table, narrow and ordered by time, so that ten
    // thousand keys are summed in one short scan. Of tokens only digests are stored.
    "ALTER TABLE keys ADD COLUMN owner TEXT;
    ALTER TABLE keys ADD COLUMN playground INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE keys ADD COLUMN last_used_at INTEGER;
    UPDATE keys SET last_used_at = (SELECT max(last_at) FROM rollups WHERE span = 3600 AND key_id = keys.id);
    CREATE INDEX keys_by_owner ON keys (owner);
    CREATE UNIQUE INDEX playgrounds ON keys (owner) WHERE playground = 1;
    CREATE TABLE key_sums (
        span INTEGER NOT NULL,
        start INTEGER NOT NULL,
        key_id TEXT NOT NULL,
        requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        prompt_measured INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        completion_measured INTEGER NOT NULL,
        total_tokens INTEGER NOT NULL,
        total_measured INTEGER NOT NULL,
        last_at INTEGER NOT NULL,
        succeeded INTEGER NOT NULL,
        PRIMARY KEY (span, start, key_id)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO key_sums
        SELECT span, start, key_id, sum(requests), sum(prompt_tokens), sum(prompt_measured), sum(completion_tokens),
            sum(completion_measured), sum(total_tokens), sum(total_measured), max(last_at),
            sum(CASE code WHEN '' THEN requests ELSE 0 END)
        FROM rollups WHERE key_id <> '' GROUP BY span, start, key_id;
    DELETE FROM rollups WHERE span <> 3600;
    CREATE INDEX requests_by_key ON requests (key_id, id);
    CREATE INDEX requests_failed ON requests (status, id) WHERE status <> 200;
    CREATE TABLE accounts (
        id TEXT NOT NULL PRIMARY KEY,
        email TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        password TEXT NOT NULL,
        role TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        signed_in_at INTEGER,
        disabled_at INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE sessions (
        digest BLOB NOT NULL PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        account TEXT NOT NULL REFERENCES accounts,
        address TEXT NOT NULL,
        agent TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        seen_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX sessions_by_account ON sessions (account);
    CREATE TABLE links (
        digest BLOB NOT NULL PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        purpose TEXT NOT NULL,
        role TEXT,
        account TEXT REFERENCES accounts,
        note TEXT NOT NULL,
        made_by TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE audit (
        number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,
        who TEXT NOT NULL,
        address TEXT NOT NULL,
        action TEXT NOT NULL,
        subject_kind TEXT NOT NULL,
        subject_id TEXT NOT NULL,
        subject TEXT NOT NULL,
        details TEXT NOT NULL
    ) STRICT;",
    // Grounding: the scorer's verdict, and how many sources went into the prompt.
    "ALTER TABLE requests ADD COLUMN score REAL;
    ALTER TABLE requests ADD COLUMN scorer INTEGER;
    ALTER TABLE requests ADD COLUMN sources INTEGER;",
    // The ledger's own time, by which old rows are deleted.
    "CREATE TABLE retention_clock (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        time INTEGER NOT NULL
    ) STRICT;",
    // Folding. `requests` holds the ids of a commit's rows that are not in the sums yet, 16 bytes each. All rows that
    // are there already have been counted. From now on a commit is in `commits` only once its time is known. What was an
    // index by key is a table, so that it is written when rows are folded and not with every commit.
    "ALTER TABLE requests ADD COLUMN account TEXT;
    CREATE TABLE unfolded (
        commit_id INTEGER NOT NULL PRIMARY KEY,
        requests BLOB NOT NULL
    ) STRICT;
    CREATE TABLE requests_of_keys (
        key_id TEXT NOT NULL,
        id BLOB NOT NULL,
        PRIMARY KEY (key_id, id)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO requests_of_keys SELECT key_id, id FROM requests ORDER BY key_id, id;
    DROP INDEX requests_by_key;",
    // Limits. A scope is as in `rollups`. `spending` holds what was spent in a period by scopes that have budgets, and in
    // its slot 0 what they had spent before they had any.
    "CREATE TABLE limits (
        scope TEXT NOT NULL,
        kind TEXT NOT NULL,
        amount INTEGER NOT NULL,
        PRIMARY KEY (scope, kind)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE limits_version (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        version INTEGER NOT NULL
    ) STRICT;
    INSERT INTO limits_version VALUES (1, 0);
    CREATE TABLE spending (
        scope TEXT NOT NULL,
        period TEXT NOT NULL,
        start INTEGER NOT NULL,
        slot INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        unmeasured INTEGER NOT NULL,
        PRIMARY KEY (scope, period, start, slot)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE notices (
        id TEXT NOT NULL PRIMARY KEY,
        body TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        next_at INTEGER NOT NULL,
        is_done INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;",
    // Rotation: the secret before this one, and until when it works. A note. And people who were deleted.
    "ALTER TABLE keys ADD COLUMN previous_digest BLOB;
    ALTER TABLE keys ADD COLUMN previous_until INTEGER;
    ALTER TABLE keys ADD COLUMN note TEXT NOT NULL DEFAULT '';
    ALTER TABLE accounts ADD COLUMN deleted_at INTEGER;",
    // Sign-in by a provider or with a passkey, and second factors.
    "ALTER TABLE sessions ADD COLUMN method TEXT NOT NULL DEFAULT 'password';
    ALTER TABLE sessions ADD COLUMN issuer TEXT;
    ALTER TABLE sessions ADD COLUMN subject TEXT;
    ALTER TABLE sessions ADD COLUMN provider_session TEXT;
    ALTER TABLE sessions ADD COLUMN confirmed_at INTEGER;
    ALTER TABLE accounts ADD COLUMN deleted_email TEXT;
    CREATE TABLE identities (
        issuer TEXT NOT NULL,
        subject TEXT NOT NULL,
        account TEXT NOT NULL REFERENCES accounts,
        created_at INTEGER NOT NULL,
        PRIMARY KEY (issuer, subject)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX identities_by_account ON identities (account);
    CREATE TABLE authenticator_apps (
        account TEXT NOT NULL PRIMARY KEY REFERENCES accounts,
        key TEXT NOT NULL,
        last_step INTEGER NOT NULL,
        created_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE passkeys (
        id TEXT NOT NULL PRIMARY KEY,
        account TEXT NOT NULL REFERENCES accounts,
        name TEXT NOT NULL,
        credential TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        used_at INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX passkeys_by_account ON passkeys (account);
    CREATE TABLE recovery_codes (
        account TEXT NOT NULL REFERENCES accounts,
        digest BLOB NOT NULL,
        PRIMARY KEY (account, digest)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE challenges (
        digest BLOB NOT NULL PRIMARY KEY,
        purpose TEXT NOT NULL,
        account TEXT NOT NULL,
        body TEXT NOT NULL,
        tries INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX challenges_by_account ON challenges (account, created_at);
    CREATE TABLE sign_in_failures (
        subject TEXT NOT NULL PRIMARY KEY,
        thousandths INTEGER NOT NULL,
        at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE sign_in_secret (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        secret TEXT NOT NULL
    ) STRICT;
    CREATE TABLE sign_in_policy (
        rule TEXT NOT NULL PRIMARY KEY,
        set_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;",
    // Projects and prices. A price is in millionths of the currency per million tokens; the one of everything else has no
    // label. A key that was given to somebody else is in `given_keys`: from then on `person_sums` holds what `key_sums`
    // does, by the owner at the time of the request ('' for nobody), and what is not there was the first owner's.
    // What an administrator forbids a key, and the latest expiry that the owner may choose.
    "ALTER TABLE keys ADD COLUMN project TEXT;
    ALTER TABLE keys ADD COLUMN admin_forbids_completions INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE keys ADD COLUMN admin_expires_at INTEGER;
    CREATE TABLE prices (
        project TEXT NOT NULL PRIMARY KEY,
        prompt INTEGER NOT NULL,
        completion INTEGER NOT NULL,
        currency TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE search_index (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        index_id TEXT NOT NULL
    ) STRICT;
    CREATE TABLE given_keys (
        key_id TEXT NOT NULL PRIMARY KEY,
        first_owner TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE person_sums (
        span INTEGER NOT NULL,
        start INTEGER NOT NULL,
        key_id TEXT NOT NULL,
        account TEXT NOT NULL,
        requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        prompt_measured INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        completion_measured INTEGER NOT NULL,
        total_tokens INTEGER NOT NULL,
        total_measured INTEGER NOT NULL,
        last_at INTEGER NOT NULL,
        succeeded INTEGER NOT NULL,
        PRIMARY KEY (span, start, key_id, account)
    ) STRICT, WITHOUT ROWID;",
];

pub(super) fn is_outdated(connection: &Connection) -> Result<bool, rusqlite::Error> {
    let (found, known) = versions(connection)?;
    Ok(found != known)
}

/// Migrates under the write lock, because several processes may start at once.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i64;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&transaction)?;
    let done = usize::try_from(found).ok().filter(|&done| done <= MIGRATIONS.len());
    for step in &MIGRATIONS[done.ok_or(StoreError::SchemaTooNew { found, known })?..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    Ok(transaction.commit()?)
}

/// The database's schema and the newest one.
pub(super) fn versions(connection: &Connection) -> Result<(i64, i64), rusqlite::Error> {
    Ok((version(connection)?, MIGRATIONS.len() as i64))
}

fn version(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
