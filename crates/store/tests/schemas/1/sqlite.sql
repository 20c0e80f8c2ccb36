CREATE TABLE keys (
id TEXT NOT NULL PRIMARY KEY,
digest BLOB NOT NULL,
previous_digest BLOB,
previous_until INTEGER,
name TEXT NOT NULL,
note TEXT NOT NULL DEFAULT '',
completions INTEGER NOT NULL,
created_at INTEGER NOT NULL,
expires_at INTEGER,
revoked_at INTEGER,
last_used_at INTEGER,
owner TEXT,
project TEXT,
playground INTEGER NOT NULL DEFAULT false,
admin_forbids_completions INTEGER NOT NULL DEFAULT false,
admin_expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_owner ON keys (owner);
CREATE UNIQUE INDEX playgrounds ON keys (owner) WHERE playground;
CREATE TABLE requests (
id BLOB NOT NULL PRIMARY KEY,
key_id TEXT NOT NULL,
account TEXT,
project TEXT,
status INTEGER NOT NULL,
code TEXT,
prompt_tokens INTEGER,
completion_tokens INTEGER,
total_tokens INTEGER,
queue_us INTEGER,
search_us INTEGER,
inference_us INTEGER,
total_us INTEGER NOT NULL,
commit_id INTEGER NOT NULL,
score REAL,
scorer INTEGER,
sources INTEGER,
runtime TEXT,
finish_reason TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_failed ON requests (status, id) WHERE status <> 200;
CREATE TABLE commits (
id INTEGER NOT NULL PRIMARY KEY,
persisted_at_us INTEGER NOT NULL
) STRICT;
CREATE TABLE unfolded (
commit_id INTEGER NOT NULL PRIMARY KEY,
requests BLOB NOT NULL
) STRICT;
CREATE TABLE unreadable_commits (
commit_id INTEGER NOT NULL PRIMARY KEY,
requests BLOB NOT NULL
) STRICT;
CREATE TABLE rollups (
party TEXT NOT NULL,
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
account TEXT NOT NULL,
        PRIMARY KEY (party, start, status, code, account)
) STRICT, WITHOUT ROWID;
CREATE TABLE sums (
span INTEGER NOT NULL,
start INTEGER NOT NULL,
key_id TEXT NOT NULL,
account TEXT NOT NULL,
project TEXT NOT NULL,
requests INTEGER NOT NULL,
prompt_tokens INTEGER NOT NULL,
prompt_measured INTEGER NOT NULL,
completion_tokens INTEGER NOT NULL,
completion_measured INTEGER NOT NULL,
total_tokens INTEGER NOT NULL,
total_measured INTEGER NOT NULL,
succeeded INTEGER NOT NULL,
        PRIMARY KEY (span, start, key_id, account, project)
) STRICT, WITHOUT ROWID;
CREATE TABLE retention_clock (
id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
time INTEGER NOT NULL
) STRICT;
CREATE TABLE probe (
id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
filler BLOB NOT NULL
) STRICT;
CREATE TABLE limits (
scope TEXT NOT NULL,
kind TEXT NOT NULL,
amount INTEGER NOT NULL,
        PRIMARY KEY (scope, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE limits_version (
id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
version INTEGER NOT NULL
) STRICT;
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
) STRICT, WITHOUT ROWID;
CREATE TABLE prices (
project TEXT NOT NULL PRIMARY KEY,
prompt INTEGER NOT NULL,
completion INTEGER NOT NULL,
currency TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE accounts (
id TEXT NOT NULL PRIMARY KEY,
email TEXT NOT NULL UNIQUE,
name TEXT NOT NULL,
password TEXT NOT NULL,
role TEXT NOT NULL,
created_at INTEGER NOT NULL,
signed_in_at INTEGER,
disabled_at INTEGER,
deleted_at INTEGER,
deleted_email TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
digest BLOB NOT NULL PRIMARY KEY,
id TEXT NOT NULL UNIQUE,
account TEXT NOT NULL REFERENCES accounts,
method TEXT NOT NULL,
issuer TEXT,
subject TEXT,
provider_session TEXT,
address TEXT NOT NULL,
agent TEXT NOT NULL,
created_at INTEGER NOT NULL,
seen_at INTEGER NOT NULL,
confirmed_at INTEGER
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
) STRICT, WITHOUT ROWID;
CREATE TABLE search_index (
id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
index_id TEXT NOT NULL
) STRICT;
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
) STRICT;
CREATE TABLE requests_of_parties (
        party TEXT NOT NULL,
        id BLOB NOT NULL,
        PRIMARY KEY (party, id)
    ) STRICT, WITHOUT ROWID;
INSERT INTO limits_version VALUES (1, 0);
PRAGMA user_version = 1;
