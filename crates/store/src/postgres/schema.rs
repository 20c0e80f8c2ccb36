//! The tables, as a list of migrations. A released migration never changes. Older replicas still run while a newer one
//! migrates, so a migration only adds tables, or columns that may be empty.

use chat::{RequestId, Timestamp};
use tokio_postgres::{Client, GenericClient, Transaction};

use super::ledger::has_unfolded_before;
use super::{number, server_micros, text};
use crate::StoreError;
use crate::commit_id::CommitId;
use crate::pruning::Deleted;

const MIGRATIONS: &[&str] = &[
    // Times are milliseconds since 1970 unless their name says otherwise. What the SQLite tables of the same names say
    // holds here, too. Ids of requests and commits are ordered by time, and both tables are partitioned by day: old
    // rows are deleted by dropping partitions. Rows of days without a partition are in the default one, `others`.
    //
    // Rows that every commit updates leave free space on their pages, so that updates stay there and touch no index.
    r#"
    CREATE TABLE keys (
        id text COLLATE "C" NOT NULL PRIMARY KEY,
        digest bytea NOT NULL,
        name text NOT NULL,
        completions boolean NOT NULL,
        created_at bigint NOT NULL,
        expires_at bigint,
        revoked_at bigint,
        owner text COLLATE "C",
        playground boolean NOT NULL,
        last_used_at bigint
    ) WITH (fillfactor = 50);
    CREATE INDEX keys_by_owner ON keys (owner);
    CREATE UNIQUE INDEX playgrounds ON keys (owner) WHERE playground;

    CREATE TABLE requests (
        id uuid NOT NULL PRIMARY KEY,
        key_id text COLLATE "C" NOT NULL,
        status smallint NOT NULL,
        code text,
        prompt_tokens bigint,
        completion_tokens bigint,
        total_tokens bigint,
        queue_us bigint,
        search_us bigint,
        inference_us bigint,
        total_us bigint NOT NULL,
        commit_id bigint NOT NULL,
        score real,
        scorer integer,
        sources integer
    ) PARTITION BY RANGE (id);
    CREATE INDEX requests_by_key ON requests (key_id, id);
    CREATE INDEX requests_failed ON requests (status, id) WHERE status <> 200;
    CREATE TABLE requests_others PARTITION OF requests DEFAULT;

    CREATE TABLE commits (
        id bigint NOT NULL PRIMARY KEY,
        persisted_at_us bigint
    ) PARTITION BY RANGE (id);
    CREATE TABLE commits_others PARTITION OF commits DEFAULT;

    CREATE TABLE rollups (
        party text COLLATE "C" NOT NULL,
        start bigint NOT NULL,
        status smallint NOT NULL,
        code text COLLATE "C" NOT NULL,
        requests bigint NOT NULL,
        prompt_tokens bigint NOT NULL,
        prompt_measured bigint NOT NULL,
        completion_tokens bigint NOT NULL,
        completion_measured bigint NOT NULL,
        total_tokens bigint NOT NULL,
        total_measured bigint NOT NULL,
        last_at bigint NOT NULL,
        latencies bigint[] NOT NULL,
        PRIMARY KEY (party, start, status, code)
    ) WITH (fillfactor = 50);

    CREATE TABLE key_sums (
        span bigint NOT NULL,
        start bigint NOT NULL,
        key_id text COLLATE "C" NOT NULL,
        requests bigint NOT NULL,
        prompt_tokens bigint NOT NULL,
        prompt_measured bigint NOT NULL,
        completion_tokens bigint NOT NULL,
        completion_measured bigint NOT NULL,
        total_tokens bigint NOT NULL,
        total_measured bigint NOT NULL,
        last_at bigint NOT NULL,
        succeeded bigint NOT NULL,
        PRIMARY KEY (span, start, key_id)
    ) WITH (fillfactor = 50);

    CREATE TABLE probe (
        id integer NOT NULL PRIMARY KEY CHECK (id = 1),
        filler bytea NOT NULL
    );

    -- Counts of latencies, each with its slot in the bits above the fortieth, in the order of slots. Nearly always every
    -- slot is there already. In one pass and in this language a merge takes a tenth of the time that a query would.
    CREATE FUNCTION merge_latencies(one bigint[], other bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
    DECLARE
        merged bigint[] := one;
        size integer := cardinality(one);
        place integer := 1;
        each bigint;
    BEGIN
        FOREACH each IN ARRAY other LOOP
            WHILE place <= size AND merged[place] >> 40 < each >> 40 LOOP
                place := place + 1;
            END LOOP;
            IF place <= size AND merged[place] >> 40 = each >> 40 THEN
                merged[place] := merged[place] + (each & 1099511627775);
            ELSE
                merged := merged[:place - 1] || each || merged[place:];
                size := size + 1;
            END IF;
        END LOOP;
        RETURN merged;
    END
    $$;

    CREATE TABLE accounts (
        id text COLLATE "C" NOT NULL PRIMARY KEY,
        email text COLLATE "C" NOT NULL UNIQUE,
        name text NOT NULL,
        password text NOT NULL,
        role text NOT NULL,
        created_at bigint NOT NULL,
        signed_in_at bigint,
        disabled_at bigint
    );
    CREATE TABLE sessions (
        digest bytea NOT NULL PRIMARY KEY,
        id text COLLATE "C" NOT NULL UNIQUE,
        account text COLLATE "C" NOT NULL REFERENCES accounts,
        address text NOT NULL,
        agent text NOT NULL,
        created_at bigint NOT NULL,
        seen_at bigint NOT NULL
    );
    CREATE INDEX sessions_by_account ON sessions (account);
    CREATE TABLE links (
        digest bytea NOT NULL PRIMARY KEY,
        id text COLLATE "C" NOT NULL UNIQUE,
        purpose text NOT NULL,
        role text,
        account text COLLATE "C" REFERENCES accounts,
        note text NOT NULL,
        made_by text NOT NULL,
        created_at bigint NOT NULL,
        expires_at bigint NOT NULL
    );
    CREATE TABLE audit (
        number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        at bigint NOT NULL,
        who text NOT NULL,
        address text NOT NULL,
        action text NOT NULL,
        subject_kind text NOT NULL,
        subject_id text NOT NULL,
        subject text NOT NULL,
        details text NOT NULL
    );
    "#,
    // The ledger's own time, by which old rows are deleted.
    "CREATE TABLE retention_clock (
        id smallint NOT NULL PRIMARY KEY CHECK (id = 1),
        time bigint NOT NULL
    )",
    // Folding. `requests` holds the ids of a commit's rows that are not in the sums yet. Replicas of earlier versions
    // list nothing, because they update the sums themselves. The table stays small: it is emptied twice a second.
    "ALTER TABLE requests ADD COLUMN account text COLLATE \"C\";
    CREATE TABLE unfolded (
        commit_id bigint NOT NULL PRIMARY KEY,
        requests uuid[] NOT NULL
    ) WITH (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0)",
    // Limits. A scope is a roll-up's party. `spending` holds what was spent in a period by scopes that have budgets, in a
    // slot for each replica, and in slot 0 what they had spent before they had any. Its rows are updated in place where
    // there is room.
    "CREATE TABLE limits (
        scope text COLLATE \"C\" NOT NULL,
        kind text NOT NULL,
        amount bigint NOT NULL,
        PRIMARY KEY (scope, kind)
    );
    CREATE TABLE limits_version (
        id smallint NOT NULL PRIMARY KEY CHECK (id = 1),
        version bigint NOT NULL
    );
    INSERT INTO limits_version VALUES (1, 0);
    CREATE TABLE spending (
        scope text COLLATE \"C\" NOT NULL,
        period text COLLATE \"C\" NOT NULL,
        start bigint NOT NULL,
        slot bigint NOT NULL,
        requests bigint NOT NULL,
        tokens bigint NOT NULL,
        unmeasured bigint NOT NULL,
        PRIMARY KEY (scope, period, start, slot)
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
    CREATE TABLE notices (
        id text COLLATE \"C\" NOT NULL PRIMARY KEY,
        body text NOT NULL,
        created_at bigint NOT NULL,
        attempts bigint NOT NULL,
        next_at bigint NOT NULL,
        is_done boolean NOT NULL
    );
    -- What requests in flight may use, until their rows are committed, and what has started lately. A party shares the
    -- limits of a scope; the empty one is the scope itself. Not logged: replicas announce what they hold again.
    CREATE UNLOGGED TABLE reservations (
        request uuid NOT NULL PRIMARY KEY,
        key_id text COLLATE \"C\" NOT NULL,
        account text COLLATE \"C\",
        tokens bigint NOT NULL,
        expires_at bigint NOT NULL
    ) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
    CREATE UNLOGGED TABLE shares (
        scope text COLLATE \"C\" NOT NULL,
        party text COLLATE \"C\" NOT NULL,
        empty_at bigint NOT NULL,
        started_at bigint NOT NULL,
        active_until bigint NOT NULL,
        PRIMARY KEY (scope, party)
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0)",
    // Rotation: the secret before this one, and until when it works. A note. And people who were deleted.
    "ALTER TABLE keys ADD COLUMN previous_digest bytea;
    ALTER TABLE keys ADD COLUMN previous_until bigint;
    ALTER TABLE keys ADD COLUMN note text NOT NULL DEFAULT '';
    ALTER TABLE accounts ADD COLUMN deleted_at bigint",
    // Sign-in by a provider or with a passkey, and second factors.
    "ALTER TABLE sessions ADD COLUMN method text NOT NULL DEFAULT 'password';
    ALTER TABLE sessions ADD COLUMN issuer text;
    ALTER TABLE sessions ADD COLUMN subject text;
    ALTER TABLE sessions ADD COLUMN provider_session text;
    ALTER TABLE sessions ADD COLUMN confirmed_at bigint;
    ALTER TABLE accounts ADD COLUMN deleted_email text;
    CREATE TABLE identities (
        issuer text COLLATE \"C\" NOT NULL,
        subject text COLLATE \"C\" NOT NULL,
        account text COLLATE \"C\" NOT NULL REFERENCES accounts,
        created_at bigint NOT NULL,
        PRIMARY KEY (issuer, subject)
    );
    CREATE INDEX identities_by_account ON identities (account);
    CREATE TABLE authenticator_apps (
        account text COLLATE \"C\" NOT NULL PRIMARY KEY REFERENCES accounts,
        key text NOT NULL,
        last_step bigint NOT NULL,
        created_at bigint NOT NULL
    );
    CREATE TABLE passkeys (
        id text COLLATE \"C\" NOT NULL PRIMARY KEY,
        account text COLLATE \"C\" NOT NULL REFERENCES accounts,
        name text NOT NULL,
        credential text NOT NULL,
        created_at bigint NOT NULL,
        used_at bigint
    );
    CREATE INDEX passkeys_by_account ON passkeys (account);
    CREATE TABLE recovery_codes (
        account text COLLATE \"C\" NOT NULL REFERENCES accounts,
        digest bytea NOT NULL,
        PRIMARY KEY (account, digest)
    );
    CREATE TABLE challenges (
        digest bytea NOT NULL PRIMARY KEY,
        purpose text NOT NULL,
        account text COLLATE \"C\" NOT NULL,
        body text NOT NULL,
        tries bigint NOT NULL,
        created_at bigint NOT NULL,
        expires_at bigint NOT NULL
    );
    CREATE INDEX challenges_by_account ON challenges (account, created_at);
    CREATE TABLE sign_in_failures (
        subject text COLLATE \"C\" NOT NULL PRIMARY KEY,
        thousandths bigint NOT NULL,
        at bigint NOT NULL
    );
    CREATE TABLE sign_in_secret (
        id integer NOT NULL PRIMARY KEY CHECK (id = 1),
        secret text NOT NULL
    );
    CREATE TABLE sign_in_policy (
        rule text COLLATE \"C\" NOT NULL PRIMARY KEY,
        set_at bigint NOT NULL
    )",
    // Projects and prices, as in SQLite's tables. Give keys to others once all replicas have this version: earlier ones do
    // not note it.
    "ALTER TABLE keys ADD COLUMN project text;
    ALTER TABLE keys ADD COLUMN admin_forbids_completions boolean NOT NULL DEFAULT false;
    ALTER TABLE keys ADD COLUMN admin_expires_at bigint;
    CREATE TABLE prices (
        project text NOT NULL PRIMARY KEY,
        prompt bigint NOT NULL,
        completion bigint NOT NULL,
        currency text NOT NULL
    );
    CREATE TABLE search_index (
        id integer NOT NULL PRIMARY KEY CHECK (id = 1),
        index_id text NOT NULL
    );
    CREATE TABLE given_keys (
        key_id text COLLATE \"C\" NOT NULL PRIMARY KEY,
        first_owner text COLLATE \"C\" NOT NULL
    );
    CREATE TABLE person_sums (
        span bigint NOT NULL,
        start bigint NOT NULL,
        key_id text COLLATE \"C\" NOT NULL,
        account text COLLATE \"C\" NOT NULL,
        requests bigint NOT NULL,
        prompt_tokens bigint NOT NULL,
        prompt_measured bigint NOT NULL,
        completion_tokens bigint NOT NULL,
        completion_measured bigint NOT NULL,
        total_tokens bigint NOT NULL,
        total_measured bigint NOT NULL,
        last_at bigint NOT NULL,
        succeeded bigint NOT NULL,
        PRIMARY KEY (span, start, key_id, account)
    ) WITH (fillfactor = 50)",
];

/// Advisory locks, with numbers that nobody else is likely to use.
const MIGRATION_LOCK: i64 = 0x6164_7269_6100_0001;
pub(super) const CHANGE_LOCK: i64 = 0x6164_7269_6100_0002;
const PARTITION_LOCK: i64 = 0x6164_7269_6100_0003;
pub(super) const FOLD_LOCK: i64 = 0x6164_7269_6100_0004;

/// How many days have partitions in advance, including today.
pub(super) const DAYS_AHEAD: u64 = 3;
pub(super) const DAY_MILLIS: u64 = 86_400_000;
/// More rows of a coming day stay where they are: requests wait while they move.
const MAX_MOVED_ROWS: u64 = 10_000;
/// A larger partition's rows are estimated for the log when it is dropped.
const MAX_COUNTED_ROWS: u64 = 100_000;

/// Migrates under a lock, because many replicas may start at once.
pub(super) async fn migrate(client: &mut Client) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i64;
    if version(client).await? != Some(known) {
        let transaction = client.transaction().await?;
        // A migration may take long, and so may another replica's.
        transaction.batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await?;
        transaction.query_typed("SELECT pg_advisory_xact_lock($1)", &[number(&MIGRATION_LOCK)]).await?;
        let found = version(&transaction).await?.unwrap_or(0);
        let done = usize::try_from(found).ok().filter(|&done| done <= MIGRATIONS.len());
        for step in &MIGRATIONS[done.ok_or(StoreError::SchemaTooNew { found, known })?..] {
            transaction.batch_execute(step).await?;
        }
        let note = format!(
            "CREATE TABLE IF NOT EXISTS adriaticum_schema (version bigint NOT NULL);
             DELETE FROM adriaticum_schema; INSERT INTO adriaticum_schema VALUES ({known})"
        );
        transaction.batch_execute(&note).await?;
        transaction.commit().await?;
    }
    let today = server_micros(client).await? / 1000 / DAY_MILLIS;
    create_coming_partitions(client, today).await.map(drop)
}

/// Creates the partitions for that day and those after it; the last day that got none.
pub(super) async fn create_coming_partitions(client: &mut Client, today: u64) -> Result<Option<u64>, StoreError> {
    if table_exists(client, &partition_name("requests", today + DAYS_AHEAD - 1)).await? {
        return Ok(None);
    }
    create_partitions(client, today, DAYS_AHEAD).await
}

/// `None` in an empty database.
async fn version(client: &impl GenericClient) -> Result<Option<i64>, StoreError> {
    if !table_exists(client, "adriaticum_schema").await? {
        return Ok(None);
    }
    let found = client.query_typed("SELECT version FROM adriaticum_schema", &[]).await?;
    Ok(found.first().map(|row| row.try_get(0)).transpose()?)
}

/// Reads the catalogue itself: a connection's cache of names may be older than the lock it just got.
async fn table_exists(client: &impl GenericClient, table: &str) -> Result<bool, StoreError> {
    let find = "SELECT EXISTS (SELECT FROM pg_tables
        WHERE tablename = $1 AND schemaname = ANY (current_schemas(false)))";
    Ok(client.query_typed(find, &[text(&table)]).await?.first().is_some_and(|row| row.get(0)))
}

/// Creates the partitions for some days, counted since 1970. Rows that a wrong clock has put there before their time
/// move from the default partition to that of their day. A day with too many of them gets none, and is returned.
pub(super) async fn create_partitions(client: &mut Client, first: u64, count: u64) -> Result<Option<u64>, StoreError> {
    let mut left_out = None;
    for day in first..first + count {
        let transaction = client.transaction().await?;
        transaction.query_typed("SELECT pg_advisory_xact_lock($1)", &[number(&PARTITION_LOCK)]).await?;
        if table_exists(&transaction, &partition_name("requests", day)).await? {
            continue;
        }
        if !create_partition(&transaction, day).await? {
            left_out = Some(day);
            continue;
        }
        transaction.commit().await?;
    }
    Ok(left_out)
}

/// `false` if too many rows would have to move.
async fn create_partition(transaction: &Transaction<'_>, day: u64) -> Result<bool, StoreError> {
    let [from, to] = [day, day + 1].map(|day| RequestId::first_at(Timestamp::from_millis(day * DAY_MILLIS)));
    let [from, to] = [from, to].map(|id| format!("'{}'", uuid::Uuid::from_bytes(id.to_bytes())));
    let [commits_from, commits_to] =
        [day, day + 1].map(|day| CommitId::first_at(day * DAY_MILLIS * 1000).number().to_string());
    for (table, from, to) in [("requests", from, to), ("commits", commits_from, commits_to)] {
        let (name, within) = (partition_name(table, day), format!("id >= {from} AND id < {to}"));
        let early =
            format!("SELECT count(*) FROM (SELECT FROM {table}_others WHERE {within} LIMIT {MAX_MOVED_ROWS}) AS early");
        let create = match super::count(&transaction.query_typed_one(&early, &[]).await?, 0)? {
            0 => format!("CREATE TABLE {name} PARTITION OF {table} FOR VALUES FROM ({from}) TO ({to})"),
            MAX_MOVED_ROWS.. => return Ok(false),
            1.. => format!(
                "CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS);
                 WITH early AS (DELETE FROM {table}_others WHERE {within} RETURNING *)
                     INSERT INTO {name} SELECT * FROM early;
                 ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})"
            ),
        };
        match transaction.batch_execute(&create).await {
            // A row has come since they were counted: next time.
            Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::CHECK_VIOLATION) => return Ok(false),
            created => created?,
        }
    }
    Ok(true)
}

/// Drops the partitions of all days before that one, counted since 1970.
pub(super) async fn drop_partitions_before(client: &mut Client, first: u64) -> Result<Deleted, StoreError> {
    let mut dropped = Deleted::default();
    let transaction = client.transaction().await?;
    // One replica is enough, and requests should not wait long behind somebody who reads.
    transaction.batch_execute("SET LOCAL lock_timeout = 500").await?;
    let lock = transaction.query_typed("SELECT pg_try_advisory_xact_lock($1)", &[number(&PARTITION_LOCK)]).await?;
    if !lock.first().is_some_and(|row| row.get(0)) {
        return Ok(dropped);
    }
    let parts = "SELECT relname::text, reltuples::bigint FROM pg_class JOIN pg_inherits ON inhrelid = pg_class.oid
        WHERE inhparent IN ('requests'::regclass, 'commits'::regclass)";
    for part in transaction.query_typed(parts, &[]).await? {
        let (name, estimate): (&str, i64) = (part.try_get(0)?, part.try_get(1)?);
        let Some((table, day)) = name.rsplit_once('_') else { continue };
        let Some(day) = day.parse::<u64>().ok().filter(|&day| day < first) else { continue };
        if table == "requests" {
            let rows = match u64::try_from(estimate) {
                Ok(many @ MAX_COUNTED_ROWS..) => many,
                _ => {
                    super::count(&transaction.query_typed_one(&format!("SELECT count(*) FROM {name}"), &[]).await?, 0)?
                }
            };
            let [start, end] = [day, day + 1].map(|day| Timestamp::from_millis(day * DAY_MILLIS));
            dropped.add(rows, start, end);
        }
        transaction.batch_execute(&format!("DROP TABLE {name}")).await?;
    }
    // Looked for while nobody can add any.
    let first = RequestId::first_at(Timestamp::from_millis(first * DAY_MILLIS));
    if has_unfolded_before(&transaction, uuid::Uuid::from_bytes(first.to_bytes())).await? {
        return Ok(Deleted::default());
    }
    transaction.commit().await?;
    Ok(dropped)
}

fn partition_name(table: &str, day: u64) -> String {
    format!("{table}_{day}")
}
