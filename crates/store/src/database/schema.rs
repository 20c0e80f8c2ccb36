//! The tables of both databases, as a list of migrations. A released migration never changes, and its resulting schemas are
//! kept in `tests/schemas`. Older replicas still run while a newer one migrates, so a migration may only add tables and
//! nullable columns.

pub(crate) struct Migration {
    /// New tables and indexes in PostgreSQL's dialect: a column to a line, and a last line that begins with `)`. Other
    /// statements with types, such as `ALTER TABLE`, stand in the other two.
    both: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

pub(crate) const MIGRATIONS: &[Migration] = &[Migration {
    // Times are milliseconds since 1970 unless their name says otherwise. Only digests of secrets and tokens are stored; a
    // key's previous digest works until `previous_until`. The `admin_…` columns are an administrator's restrictions.
    //
    // Ids of requests and commits are ordered by time, so their tables grow at the end. PostgreSQL partitions them by day:
    // old rows are deleted by dropping partitions. Tables whose rows are updated often leave free space on their pages, so
    // that updates stay on the page and touch no index.
    both: r#"
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
    CREATE INDEX requests_failed ON requests (status, id) WHERE status <> 200;

    -- Commits whose time is known.
    CREATE TABLE commits (
        id bigint NOT NULL PRIMARY KEY,
        persisted_at_us bigint NOT NULL
    ) PARTITION BY RANGE (id);

    -- The ids of a commit's rows that are not yet in the sums. Stays small: folding empties it twice a second.
    CREATE TABLE unfolded (
        commit_id bigint NOT NULL PRIMARY KEY,
        requests uuid[] NOT NULL
    ) WITH (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0);

    -- Commits of `unfolded` that cannot be read.
    CREATE TABLE unreadable_commits (
        commit_id bigint NOT NULL PRIMARY KEY,
        requests uuid[] NOT NULL
    );

    -- Sums by hour. A party is '' for everyone, '@' and an account's id, or a key's id. A key's sums are kept by the account of
    -- its owner at the time of the request ('' for none); for the other parties, the account is ''.
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
    -- Sums by hour, day and eight days, for each key, and its owner and project at the time of the request ('' for none).
    -- Narrow and ordered by time, so that ten thousand keys are summed in one short scan.
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

    -- The ledger's time, by which old rows are deleted.
    CREATE TABLE retention_clock (
        id smallint NOT NULL PRIMARY KEY CHECK (id = 1),
        time bigint NOT NULL
    );
    CREATE TABLE probe (
        id smallint NOT NULL PRIMARY KEY CHECK (id = 1),
        filler bytea NOT NULL
    );

    -- A scope has the form of a party in `rollups`. `spending` has the spending per period of scopes with budgets, with a slot
    -- for each replica; slot 0 is the spending from before they had any.
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
    -- In millionths of the currency per million tokens; the default price has the project ''.
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
    );
    "#,
    // Indexes by key and by person, which are written when rows are folded, not with every commit. A party has the same form
    // as in `rollups`.
    sqlite: "
    CREATE TABLE requests_of_parties (
        party TEXT NOT NULL,
        id BLOB NOT NULL,
        PRIMARY KEY (party, id)
    ) STRICT, WITHOUT ROWID;",
    // Rows of days without a partition are in the default one, `…_others`.
    postgres: r#"
    CREATE INDEX requests_by_key ON requests (key_id, id);
    CREATE INDEX requests_by_account ON requests (account, id) WHERE account IS NOT NULL;
    CREATE TABLE requests_others PARTITION OF requests DEFAULT;
    CREATE TABLE commits_others PARTITION OF commits DEFAULT;
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
    "#,
}];

/// The types of PostgreSQL and those of SQLite's strict tables.
const TYPES: [(&str, &str); 12] = [
    ("bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY", "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"),
    ("text COLLATE \"C\"", "TEXT"),
    ("text", "TEXT"),
    ("bigint[]", "BLOB"),
    ("uuid[]", "BLOB"),
    ("uuid", "BLOB"),
    ("bytea", "BLOB"),
    ("bigint", "INTEGER"),
    ("smallint", "INTEGER"),
    ("integer", "INTEGER"),
    ("boolean", "INTEGER"),
    ("real", "REAL"),
];

impl Migration {
    pub(crate) fn for_postgres(&self) -> String {
        format!("{}{}", self.both, self.postgres)
    }

    pub(crate) fn for_sqlite(&self) -> String {
        let mut script = String::new();
        let mut has_rowid = false;
        for line in self.both.lines() {
            let column = line.trim_start().split_once(' ').and_then(|(name, rest)| {
                let found = TYPES.iter().find_map(|(from, to)| Some((to, rest.strip_prefix(from)?)));
                found.map(|(kind, constraints)| format!("{name} {kind}{constraints}"))
            });
            match column {
                Some(column) => {
                    // SQLite's table is then ordered by this number.
                    has_rowid |= column.contains("INTEGER NOT NULL PRIMARY KEY");
                    script += &column;
                }
                None if line.trim_start().starts_with(')') => {
                    script += if std::mem::take(&mut has_rowid) { ") STRICT;" } else { ") STRICT, WITHOUT ROWID;" };
                }
                None => script += line,
            }
            script.push('\n');
        }
        script + self.sqlite
    }
}
