//! The tables, as a list of migrations. A released migration never changes, and its resulting schema is kept in
//! `tests/schemas`. Older replicas still run while a newer one migrates, so a migration may only add tables and nullable
//! columns.

use std::time::Duration;

use tokio_postgres::{Client, GenericClient};

use crate::StoreError;
use crate::database::postgres::ddl::{Changed, change_tables};
use crate::database::postgres::{number, text};

const MIGRATIONS: &[&str] = &[
    // Times are milliseconds since 1970 unless their name says otherwise. The comments on SQLite's tables of the same names
    // also apply here.
    //
    // Ids of requests and commits are ordered by time, and both tables are partitioned by day: old rows are deleted by
    // dropping partitions. Rows of days without a partition are in the default one, `others`. Tables whose rows are updated
    // often leave free space on their pages, so that updates stay on the page and touch no index.
    r#"
    CREATE TABLE keys (
        id text COLLATE "C" NOT NULL PRIMARY KEY,
        digest bytea NOT NULL,
        previous_digest bytea,
        previous_until bigint,
        name text NOT NULL,
        note text NOT NULL DEFAULT '',
        completions boolean NOT NULL,
        created_at bigint NOT NULL,
        expires_at bigint,
        revoked_at bigint,
        last_used_at bigint,
        owner text COLLATE "C",
        project text,
        playground boolean NOT NULL DEFAULT false,
        admin_forbids_completions boolean NOT NULL DEFAULT false,
        admin_expires_at bigint
    ) WITH (fillfactor = 50);
    CREATE INDEX keys_by_owner ON keys (owner);
    CREATE UNIQUE INDEX playgrounds ON keys (owner) WHERE playground;

    CREATE TABLE requests (
        id uuid NOT NULL PRIMARY KEY,
        key_id text COLLATE "C" NOT NULL,
        account text COLLATE "C",
        project text COLLATE "C",
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
        sources integer,
        runtime text,
        finish_reason text
    ) PARTITION BY RANGE (id);
    CREATE INDEX requests_by_key ON requests (key_id, id);
    CREATE INDEX requests_by_account ON requests (account, id) WHERE account IS NOT NULL;
    CREATE INDEX requests_failed ON requests (status, id) WHERE status <> 200;
    CREATE TABLE requests_others PARTITION OF requests DEFAULT;

    CREATE TABLE commits (
        id bigint NOT NULL PRIMARY KEY,
        persisted_at_us bigint NOT NULL
    ) PARTITION BY RANGE (id);
    CREATE TABLE commits_others PARTITION OF commits DEFAULT;

    -- Stays small: folding empties it twice a second.
    CREATE TABLE unfolded (
        commit_id bigint NOT NULL PRIMARY KEY,
        requests uuid[] NOT NULL
    ) WITH (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0);

    -- Commits of `unfolded` that cannot be read.
    CREATE TABLE unreadable_commits (
        commit_id bigint NOT NULL PRIMARY KEY,
        requests uuid[] NOT NULL
    );

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
        account text COLLATE "C" NOT NULL,
        PRIMARY KEY (party, start, status, code, account)
    ) WITH (fillfactor = 50);
    CREATE TABLE sums (
        span bigint NOT NULL,
        start bigint NOT NULL,
        key_id text COLLATE "C" NOT NULL,
        account text COLLATE "C" NOT NULL,
        project text COLLATE "C" NOT NULL,
        requests bigint NOT NULL,
        prompt_tokens bigint NOT NULL,
        prompt_measured bigint NOT NULL,
        completion_tokens bigint NOT NULL,
        completion_measured bigint NOT NULL,
        total_tokens bigint NOT NULL,
        total_measured bigint NOT NULL,
        succeeded bigint NOT NULL,
        PRIMARY KEY (span, start, key_id, account, project)
    ) WITH (fillfactor = 50);

    -- Counts of latencies, each with its slot in the bits above the fortieth, in the order of slots. Nearly always all
    -- slots already exist. In one pass and in this language a merge takes a tenth of the time of a query.
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

    CREATE TABLE retention_clock (
        id smallint NOT NULL PRIMARY KEY CHECK (id = 1),
        time bigint NOT NULL
    );
    CREATE TABLE probe (
        id smallint NOT NULL PRIMARY KEY CHECK (id = 1),
        filler bytea NOT NULL
    );

    -- `spending` has a slot for each replica.
    CREATE TABLE limits (
        scope text COLLATE "C" NOT NULL,
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
        scope text COLLATE "C" NOT NULL,
        period text COLLATE "C" NOT NULL,
        start bigint NOT NULL,
        slot bigint NOT NULL,
        requests bigint NOT NULL,
        tokens bigint NOT NULL,
        unmeasured bigint NOT NULL,
        PRIMARY KEY (scope, period, start, slot)
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
    CREATE TABLE notices (
        id text COLLATE "C" NOT NULL PRIMARY KEY,
        body text NOT NULL,
        created_at bigint NOT NULL,
        attempts bigint NOT NULL,
        next_at bigint NOT NULL,
        is_done boolean NOT NULL
    );
    -- The maximum use of requests in flight until their rows are committed, and the rates of recent starts. A party
    -- shares the limits of a scope; the empty party is the scope itself. Unlogged: replicas store their reservations
    -- again.
    CREATE UNLOGGED TABLE reservations (
        request uuid NOT NULL PRIMARY KEY,
        key_id text COLLATE "C" NOT NULL,
        account text COLLATE "C",
        tokens bigint NOT NULL,
        expires_at bigint NOT NULL
    ) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
    CREATE UNLOGGED TABLE shares (
        scope text COLLATE "C" NOT NULL,
        party text COLLATE "C" NOT NULL,
        empty_at bigint NOT NULL,
        started_at bigint NOT NULL,
        active_until bigint NOT NULL,
        PRIMARY KEY (scope, party)
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
    CREATE TABLE prices (
        project text NOT NULL PRIMARY KEY,
        prompt bigint NOT NULL,
        completion bigint NOT NULL,
        currency text NOT NULL
    );

    CREATE TABLE accounts (
        id text COLLATE "C" NOT NULL PRIMARY KEY,
        email text COLLATE "C" NOT NULL UNIQUE,
        name text NOT NULL,
        password text NOT NULL,
        role text NOT NULL,
        created_at bigint NOT NULL,
        signed_in_at bigint,
        disabled_at bigint,
        deleted_at bigint,
        deleted_email text
    );
    CREATE TABLE sessions (
        digest bytea NOT NULL PRIMARY KEY,
        id text COLLATE "C" NOT NULL UNIQUE,
        account text COLLATE "C" NOT NULL REFERENCES accounts,
        method text NOT NULL,
        issuer text,
        subject text,
        provider_session text,
        address text NOT NULL,
        agent text NOT NULL,
        created_at bigint NOT NULL,
        seen_at bigint NOT NULL,
        confirmed_at bigint
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
    CREATE TABLE identities (
        issuer text COLLATE "C" NOT NULL,
        subject text COLLATE "C" NOT NULL,
        account text COLLATE "C" NOT NULL REFERENCES accounts,
        created_at bigint NOT NULL,
        PRIMARY KEY (issuer, subject)
    );
    CREATE INDEX identities_by_account ON identities (account);
    CREATE TABLE authenticator_apps (
        account text COLLATE "C" NOT NULL PRIMARY KEY REFERENCES accounts,
        key text NOT NULL,
        last_step bigint NOT NULL,
        created_at bigint NOT NULL
    );
    CREATE TABLE passkeys (
        id text COLLATE "C" NOT NULL PRIMARY KEY,
        account text COLLATE "C" NOT NULL REFERENCES accounts,
        name text NOT NULL,
        credential text NOT NULL,
        created_at bigint NOT NULL,
        used_at bigint
    );
    CREATE INDEX passkeys_by_account ON passkeys (account);
    CREATE TABLE recovery_codes (
        account text COLLATE "C" NOT NULL REFERENCES accounts,
        digest bytea NOT NULL,
        PRIMARY KEY (account, digest)
    );
    CREATE TABLE challenges (
        digest bytea NOT NULL PRIMARY KEY,
        purpose text NOT NULL,
        account text COLLATE "C" NOT NULL,
        body text NOT NULL,
        tries bigint NOT NULL,
        created_at bigint NOT NULL,
        expires_at bigint NOT NULL
    );
    CREATE INDEX challenges_by_account ON challenges (account, created_at);
    CREATE TABLE sign_in_failures (
        subject text COLLATE "C" NOT NULL PRIMARY KEY,
        thousandths bigint NOT NULL,
        at bigint NOT NULL
    );
    CREATE TABLE sign_in_secret (
        id smallint NOT NULL PRIMARY KEY CHECK (id = 1),
        secret text NOT NULL
    );
    CREATE TABLE sign_in_policy (
        rule text COLLATE "C" NOT NULL PRIMARY KEY,
        set_at bigint NOT NULL
    );
    CREATE TABLE search_index (
        id integer NOT NULL PRIMARY KEY CHECK (id = 1),
        index_id text NOT NULL
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
    )"#,
];

/// Advisory locks, with numbers that other programs are unlikely to use.
const MIGRATION_LOCK: i64 = 0x6164_7269_6100_0001;
pub(crate) const CHANGE_LOCK: i64 = 0x6164_7269_6100_0002;
pub(crate) const PARTITION_LOCK: i64 = 0x6164_7269_6100_0003;
pub(crate) const FOLD_LOCK: i64 = 0x6164_7269_6100_0004;

/// How often a replica checks whether another one has migrated the tables.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The first and the longest pause between attempts to migrate tables that are in use.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];

/// Migrates under a lock, because many replicas may start at the same time.
pub(crate) async fn migrate(client: &mut Client) -> Result<(), StoreError> {
    apply(client, MIGRATIONS).await
}

async fn apply(client: &mut Client, steps: &[&str]) -> Result<(), StoreError> {
    let known = steps.len() as i64;
    loop {
        let found = version(client).await?.unwrap_or(0);
        if found == known {
            return Ok(());
        } else if !(0..known).contains(&found) {
            return Err(StoreError::SchemaTooNew { found, known });
        }
        // Held between two attempts, so that only one starting replica at a time blocks those that serve.
        let lock = client.query_typed_one("SELECT pg_try_advisory_lock($1)", &[number(&MIGRATION_LOCK)]).await?;
        if lock.try_get(0)? {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let [mut pause, longest] = RETRY_PAUSES;
    while let Changed::InUse = apply_once(client, steps).await? {
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
    client.query_typed("SELECT pg_advisory_unlock($1)", &[number(&MIGRATION_LOCK)]).await?;
    Ok(())
}

/// Runs the outstanding steps in one transaction.
async fn apply_once(client: &mut Client, steps: &[&str]) -> Result<Changed<()>, StoreError> {
    change_tables(client, "migrating the tables", async |transaction| {
        transaction.batch_execute("SET LOCAL statement_timeout = 0").await?; // a step may take long
        let done = version(transaction).await?.unwrap_or(0);
        for step in steps.iter().skip(usize::try_from(done).unwrap_or(usize::MAX)) {
            transaction.batch_execute(step).await?;
        }
        let note = format!(
            "CREATE TABLE IF NOT EXISTS adriaticum_schema (version bigint NOT NULL);
             DELETE FROM adriaticum_schema; INSERT INTO adriaticum_schema VALUES ({})",
            steps.len()
        );
        transaction.batch_execute(&note).await?;
        Ok(Some(()))
    })
    .await
}

/// `None` in an empty database.
async fn version(client: &impl GenericClient) -> Result<Option<i64>, StoreError> {
    if !table_exists(client, "adriaticum_schema").await? {
        return Ok(None);
    }
    let found = client.query_typed("SELECT version FROM adriaticum_schema", &[]).await?;
    Ok(found.first().map(|row| row.try_get(0)).transpose()?)
}

/// Reads the catalogue, because a connection's cache of names may be older than its newest lock.
pub(crate) async fn table_exists(client: &impl GenericClient, table: &str) -> Result<bool, StoreError> {
    let find = "SELECT EXISTS (SELECT FROM pg_tables
        WHERE tablename = $1 AND schemaname = ANY (current_schemas(false)))";
    Ok(client.query_typed(find, &[text(&table)]).await?.first().is_some_and(|row| row.get(0)))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use testbed::Cluster;

    use super::*;
    use crate::database::postgres::server::Server;
    use crate::usage::rollup::{Entry, Outcome, Timings};
    use crate::{Database, PostgresSettings, Store};

    /// A newer version migrates while a replica serves and a dump holds locks on all tables.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_migration_during_a_dump_delays_no_request() {
        let cluster = Cluster::shared();
        let url = cluster.create_database();
        let settings = PostgresSettings { url: url.parse().unwrap(), connections: 2, timeout: Duration::from_secs(5) };
        let store = Store::open(&Database::Postgres(settings.clone())).await.unwrap();
        let (ledger, writer) = store.start_ledger(Duration::from_secs(86_400)).unwrap();
        let dump = cluster.start_dump(&url);

        let next = "ALTER TABLE keys ADD COLUMN later text; ALTER TABLE requests ADD COLUMN later text";
        let steps: Vec<_> = MIGRATIONS.iter().copied().chain([next]).collect();
        let migration = tokio::spawn(async move {
            let mut session = Server::new(&settings).unwrap().connect().await?;
            apply(&mut session, &steps).await
        });
        let mut longest = Duration::ZERO;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            let row = Entry {
                request_id: chat::RequestId::now(),
                key: "000000000001".parse().unwrap(),
                owner: None,
                project: None,
                outcome: Outcome { status: 200, code: None },
                usage: Default::default(),
                timings: Timings::default(),
                grounding: None,
                inference: Default::default(),
            };
            let sent = Instant::now();
            ledger.record(row, None).await.unwrap();
            longest = longest.max(sent.elapsed());
        }
        assert!(longest < Duration::from_secs(1), "a request waited for {longest:?}");
        assert!(!migration.is_finished());
        drop(dump);
        migration.await.unwrap().unwrap();
        assert_eq!(cluster.sql(&url, "SELECT version FROM adriaticum_schema"), (MIGRATIONS.len() + 1).to_string());
        writer.stop();
    }
}
