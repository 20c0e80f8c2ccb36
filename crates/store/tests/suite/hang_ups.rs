//! Callers that hang up: each public future of the store is dropped at each await, and also while it waits for a lock of
//! another session. Afterwards no statement is running, no transaction is open, no lock is held or waited for, the pool is
//! within its limit, and the next caller is served promptly.
//!
//! Faults found: a transaction whose `BEGIN` was abandoned returned to the pool open, with the lock of all changes (in 35
//! of 40 rounds). After this was fixed, an abandoned statement still continued until the database's timeout: it kept its
//! locks and its place in the queue for others. Its connection was either given to the next caller, who then waited for
//! it, or missing in the pool's count: 12 callers that hung up left 12 connections with a limit of 4.

use std::pin::Pin;
use std::time::{Duration, Instant};

use chat::{KeyId, KeyName, RequestId, Timestamp};
use store::{
    Access, AccountError, AccountId, AuditQuery, Caller, ChallengePurpose, Credentials, Database, Email, Grouping,
    KeyChange, KeyOrder, KeySearch, Ledger, Limit, LimitKind, LinkId, NewAccount, NewKey, Origin, PasswordTry, Period,
    PersonName, PostgresSettings, Price, PriceError, Proof, ProvidedPerson, ProvidedSignInError, RecoveryCode,
    RequestQuery, ReserveError, Role, Scope, Session, SessionId, SignInError, Step, Store, StoreError, Token,
    UsageQuery, UsedPasskey, Viewer, WrongPasswords,
};
use testbed::{DatabaseWatch, drop_when_pending};

use crate::database::{TestDatabase, entry};
use crate::on_each_backend;

on_each_backend!(every_future_can_be_dropped_at_each_await, a_row_whose_caller_hangs_up_is_recorded_once);

/// Much longer than `RESPONSE_LIMIT`, so that a caller that waits for it fails the test.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(30);
/// The limit for serving the next caller, or for ending an abandoned statement, on a busy machine.
const RESPONSE_LIMIT: Duration = Duration::from_secs(8);
/// The pool's limit.
const CONNECTIONS: usize = 2;
/// In addition to the pool: key look-ups, the ledger, limits.
const OTHER_CONNECTIONS: i64 = 3;
const DAY: Duration = Duration::from_secs(86_400);
const ADDRESS: &str = "10.0.0.1";

/// The state that all operations share.
struct World {
    store: Store,
    key: chat::ApiKey,
    token: Token,
    session: Session,
    other: AccountId,
    /// Authenticated by the key.
    caller: Caller,
}

/// Objects that one operation may use up.
struct Fresh {
    invitation: Token,
    link: LinkId,
    reset: Token,
    key: KeyId,
    session: SessionId,
    leaver: AccountId,
}

type Operating<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + 'a>>;
type Operation = (&'static str, for<'a> fn(&'a World, &'a Fresh) -> Operating<'a>);

/// A list of operations with the names of the functions that they call.
macro_rules! operations {
    (|$world:ident, $fresh:ident| { $($name:ident($($argument:expr),*),)* }) => {
        &[$((stringify!($name), |$world, $fresh| {
            let _ = $fresh; // not all use it
            Box::pin(async move { outcome($world.store.$name($($argument),*).await) })
        })),*]
    };
}

/// Every public future of a store.
const OPERATIONS: &[Operation] = operations!(|world, fresh| {
    authenticate(&world.key),
    create_key(&world.session.viewer, new_key(), u64::MAX),
    list_keys(&world.session.viewer),
    find_keys(&world.session.viewer, &KeySearch::default(), KeyOrder::Name, false),
    keys_with_ids(&world.session.viewer, &[fresh.key]),
    names_of_limited_keys(&world.session.viewer),
    key(&world.session.viewer, fresh.key),
    has_keys(&world.session.viewer),
    count_keys(),
    rename_key(&world.session.viewer, fresh.key, &KeyName::parse("renamed").unwrap()),
    revoke_key(&world.session.viewer, fresh.key),
    playground_caller(&world.session.viewer),
    count_accounts(),
    credentials(&email("ada")),
    password(&world.session.viewer),
    set_password(&world.session.viewer, world.session.id, "hash", "hash"),
    set_own_name(&world.session.viewer, &PersonName::parse("Ada").unwrap()),
    accounts(world.session.viewer.admin().unwrap()),
    set_role(world.session.viewer.admin().unwrap(), world.other, Role::Developer),
    set_access(world.session.viewer.admin().unwrap(), world.other, Access::Enabled),
    create_setup_link(),
    needs_set_up(),
    link(&fresh.invitation),
    use_link(&fresh.invitation, &new_account(&fresh.key.to_string()), ADDRESS),
    reset_password(&fresh.reset, "hash", ADDRESS),
    invite(world.session.viewer.admin().unwrap(), Role::Developer, "Eve", DAY),
    create_reset_link(world.session.viewer.admin().unwrap(), &email("bob")),
    links(world.session.viewer.admin().unwrap()),
    revoke_link(world.session.viewer.admin().unwrap(), fresh.link),
    begin_session(world.other, &origin(), Proof::Password("hash")),
    session(&world.token, ADDRESS),
    is_valid(&world.session.viewer),
    sessions(&world.session.viewer),
    sessions_of(world.session.viewer.admin().unwrap(), world.other),
    end_session_of(world.session.viewer.admin().unwrap(), world.other, fresh.session),
    end_session(&world.session.viewer, fresh.session),
    end_other_sessions(&world.session.viewer, world.session.id),
    audit(world.session.viewer.admin().unwrap(), &AuditQuery { limit: 10, ..AuditQuery::default() }),
    record_wrong_passwords(&wrong_password()),
    usage(&world.session.viewer, &everything()),
    usage_by_key(&world.session.viewer, everything().period),
    requests(&world.session.viewer, &RequestQuery { limit: 10, ..RequestQuery::default() }),
    search_requests(&world.session.viewer, &RequestQuery { limit: 10, ..RequestQuery::default() }),
    request(&world.session.viewer, RequestId::now()),
    check_integrity(),
    session_addresses(&email("ada")),
    rotate_key(&world.session.viewer, fresh.key, DAY),
    end_overlap(&world.session.viewer, fresh.key),
    accounts_without_second_factor(world.session.viewer.admin().unwrap()),
    change_key(&world.session.viewer, fresh.key, &[KeyChange::Completions(false), KeyChange::Owner(Some(world.other))]),
    set_limit(world.session.viewer.admin().unwrap(), limit(fresh.key)),
    remove_limit(world.session.viewer.admin().unwrap(), Scope::Key(fresh.key), limit(fresh.key).kind),
    prices(&world.session.viewer),
    set_price(world.session.viewer.admin().unwrap(), None, price(), "EUR".parse().ok()),
    remove_price(world.session.viewer.admin().unwrap(), None),
    list_limits(&world.session.viewer),
    limits_of_key(&world.session.viewer, fresh.key),
    authenticate_again(&world.caller),
    reserve(&world.caller, RequestId::now(), 10),
    count_active_keys(world.session.viewer.admin().unwrap(), world.other),
    revoke_keys_of(world.session.viewer.admin().unwrap(), fresh.leaver),
    set_profile(
        world.session.viewer.admin().unwrap(),
        fresh.leaver,
        &PersonName::parse("Eve").unwrap(),
        &email(&format!("e{}", fresh.key))
    ),
    delete_account(world.session.viewer.admin().unwrap(), fresh.leaver),
    add_notice(fresh.key.as_str(), "{}"),
    claim_notices(DAY),
    finish_notice(fresh.key.as_str()),
    retry_notice(fresh.key.as_str(), DAY),
    count_expiring_keys(&world.session.viewer),
    expiring_keys(),
    end_sessions_of(world.session.viewer.admin().unwrap(), world.other),
    sign_in_provided(&provided_person(fresh.key), &origin()),
    end_provided_sessions("https://login.example.com", Some("somebody"), None, ADDRESS),
    disconnect_identities(world.session.viewer.admin().unwrap(), Some(world.other)),
    second_factors(world.other),
    authenticator_app(world.other),
    set_authenticator_app(
        &world.session.viewer,
        world.session.id,
        "GEZDGNBVGY3TQOJQ",
        1,
        &RecoveryCode::generate_all().unwrap()
    ),
    remove_authenticator_app(&world.session.viewer),
    add_passkey(&world.session.viewer, world.session.id, fresh.key.as_str(), "My phone", "{}"),
    passkey(fresh.key.as_str()),
    passkey_owner(fresh.key.as_str()),
    confirm_with_password(&world.session.viewer, "hash"),
    confirm_with_passkey(&world.session.viewer, &used_passkey(fresh.key)),
    deleted_people(world.session.viewer.admin().unwrap()),
    allow_return(world.session.viewer.admin().unwrap(), fresh.leaver),
    remove_passkey(&world.session.viewer, fresh.key.as_str()),
    set_recovery_codes(&world.session.viewer, &RecoveryCode::generate_all().unwrap()),
    reset_second_factors(world.session.viewer.admin().unwrap(), world.other),
    is_second_factor_required(),
    require_second_factor(world.session.viewer.admin().unwrap(), false),
    create_challenge(ChallengePurpose::AddPasskey, world.other, "{}"),
    begin_second_step(&verified(world.other), ""),
    sign_in_secret(),
    expected_index(),
    expect_index("index"),
    forget_index(),
    challenge(ChallengePurpose::SecondFactor, &world.token),
    count_code(&world.token, true),
    take_challenge(ChallengePurpose::AddPasskey, &world.token),
    sign_in_failures(&[ADDRESS]),
    add_sign_in_failure(&[ADDRESS, "somebody"]),
    forget_sign_in_failures("somebody", ADDRESS),
});

/// It is not a failure if an object no longer exists because an earlier caller hung up too late.
fn outcome<T>(result: Result<T, impl Failure>) -> Result<(), StoreError> {
    match result.map_err(Failure::into_store_error) {
        Err(Some(error)) => Err(error),
        Ok(_) | Err(None) => Ok(()),
    }
}

trait Failure {
    /// `None` if it is not an error of the database.
    fn into_store_error(self) -> Option<StoreError>;
}

impl Failure for StoreError {
    fn into_store_error(self) -> Option<StoreError> {
        Some(self)
    }
}

impl Failure for AccountError {
    fn into_store_error(self) -> Option<StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl Failure for PriceError {
    fn into_store_error(self) -> Option<StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl Failure for SignInError {
    fn into_store_error(self) -> Option<StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl Failure for ProvidedSignInError {
    fn into_store_error(self) -> Option<StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl Failure for ReserveError {
    fn into_store_error(self) -> Option<StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Refused(_) => None,
        }
    }
}

fn provided_person(subject: KeyId) -> ProvidedPerson {
    ProvidedPerson {
        issuer: "https://login.example.com".into(),
        subject: subject.to_string(),
        email: email(&format!("p{subject}")),
        is_email_verified: Some(true),
        name: PersonName::parse("Eve").unwrap(),
        role: None,
        session: None,
        authenticated_at: None,
    }
}

impl World {
    async fn new(database: &Database) -> Self {
        let store = Store::open(database).await.unwrap();
        let operator = Viewer::operator();
        let ada = store.invite(operator.admin().unwrap(), Role::Admin, "ada", DAY).await.unwrap();
        let ada = store.use_link(&ada, &new_account("ada"), ADDRESS).await.unwrap();
        let bob = store.invite(operator.admin().unwrap(), Role::Developer, "bob", DAY).await.unwrap();
        let other = store.use_link(&bob, &new_account("bob"), ADDRESS).await.unwrap();
        let begun = store.begin_session(ada, &origin(), Proof::Password("hash")).await.unwrap();
        let key = store.create_key(&begun.session.viewer, new_key(), u64::MAX).await.unwrap();
        for kind in LimitKind::ALL {
            let limit = Limit { scope: Scope::Key(key.id()), kind, amount: 1_000_000 };
            assert!(store.set_limit(operator.admin().unwrap(), limit).await.unwrap());
        }
        let caller = store.authenticate(&key).await.unwrap().unwrap();
        Self { store, key, token: begun.token, session: begun.session, other, caller }
    }

    async fn fresh(&self) -> Fresh {
        let (store, viewer) = (&self.store, &self.session.viewer);
        let admin = viewer.admin().unwrap();
        let key = store.create_key(viewer, new_key(), u64::MAX).await.unwrap().id();
        let leaver = store.invite(admin, Role::Developer, "Eve", DAY).await.unwrap();
        let leaver = store.use_link(&leaver, &new_account(&format!("l{key}")), ADDRESS).await.unwrap();
        Fresh {
            invitation: store.invite(admin, Role::Developer, "Eve", DAY).await.unwrap(),
            link: store.links(admin).await.unwrap().pop().unwrap().id,
            reset: store.create_reset_link(admin, &email("bob")).await.unwrap(),
            key,
            leaver,
            session: store.begin_session(self.other, &origin(), Proof::Password("hash")).await.unwrap().session.id,
        }
    }

    /// A read, a change and a look-up, in this order.
    async fn serve_the_next_caller(&self, after: &str) {
        let began = Instant::now();
        let served = async {
            self.store.list_keys(&self.session.viewer).await?;
            self.store.set_own_name(&self.session.viewer, &PersonName::parse("Ada").unwrap()).await?;
            self.store.authenticate(&self.key).await
        };
        let served = tokio::time::timeout(RESPONSE_LIMIT, served).await;
        let took = began.elapsed();
        let served = served.unwrap_or_else(|_| panic!("after {after}: the next caller still waits after {took:?}"));
        assert!(served.unwrap_or_else(|error| panic!("after {after}: the next caller's error: {error}")).is_some());
    }
}

fn email(name: &str) -> Email {
    format!("{name}@example.com").parse().unwrap()
}

fn new_account(name: &str) -> NewAccount {
    NewAccount { email: email(name), name: PersonName::parse(name).unwrap(), password: "hash".into() }
}

fn new_key() -> NewKey {
    NewKey { name: KeyName::parse("k").unwrap(), completions: true, expires_at: None, project: None }
}

fn limit(key: KeyId) -> Limit {
    Limit { scope: Scope::Key(key), kind: LimitKind::ALL[0], amount: 10 }
}

fn price() -> Price {
    Price { prompt: "0.20".parse().unwrap(), completion: "0.80".parse().unwrap() }
}

fn used_passkey(id: KeyId) -> UsedPasskey {
    UsedPasskey { id: id.to_string(), credential: "{}".into(), challenge: id.to_string() }
}

fn verified(account: AccountId) -> Credentials {
    Credentials { account, password: "hash".into(), has_second_factor: true }
}

fn origin() -> Origin {
    Origin { address: ADDRESS.into(), agent: "a browser".into() }
}

fn wrong_password() -> WrongPasswords {
    WrongPasswords {
        at: PasswordTry::SignIn,
        address: ADDRESS.into(),
        account: Some(email("ada")),
        several_accounts: false,
        count: 1,
    }
}

fn everything() -> UsageQuery {
    UsageQuery {
        period: Period::since(Timestamp::default()),
        key: None,
        step: Step::Hour,
        person: None,
        group: Some(Grouping::Key),
    }
}

/// The same database, with a small pool and a long timeout.
fn patient(database: &Database) -> Database {
    match database {
        Database::Sqlite(path) => Database::Sqlite(path.clone()),
        Database::Postgres(settings) => Database::Postgres(PostgresSettings {
            connections: CONNECTIONS,
            timeout: DATABASE_TIMEOUT,
            ..settings.clone()
        }),
    }
}

#[test]
fn no_public_future_of_a_store_is_left_out() {
    let folders = [concat!(env!("CARGO_MANIFEST_DIR"), "/src"), concat!(env!("CARGO_MANIFEST_DIR"), "/src/limits")];
    let sources = folders.into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut names = Vec::new();
    for source in sources.map(|file| file.unwrap().path()).filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(&source).unwrap();
        for (at, _) in text.match_indices("    pub async fn ") {
            let (name, parameters) = text[at..].trim_start_matches("    pub async fn ").split_once('(').unwrap();
            if parameters.trim_start().starts_with("&self") && name != "record" {
                names.push(name.to_owned());
            }
        }
    }
    names.sort_unstable();
    let mut tested: Vec<_> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    tested.sort_unstable();
    assert_eq!(names, tested);
}

async fn every_future_can_be_dropped_at_each_await(database: TestDatabase) {
    let database = patient(&database.database);
    let world = World::new(&database).await;
    let server = watch(&database).await;
    let mut dropped = 0;
    for (name, operation) in OPERATIONS {
        for pause in [Duration::ZERO, Duration::from_millis(2)] {
            for times in 1.. {
                let fresh = world.fresh().await;
                let completed = drop_when_pending(times, pause, operation(&world, &fresh)).await;
                if let Some(result) = completed {
                    result.unwrap_or_else(|error| panic!("{name}: {error}"));
                    break;
                }
                dropped += 1;
                let place = format!("{name}, dropped at pending poll {times}");
                if let Some(server) = &server {
                    server.assert_nothing_is_left(&place, RESPONSE_LIMIT).await;
                }
                world.serve_the_next_caller(&place).await;
            }
        }
    }
    println!("{dropped} futures were dropped");
    assert!(server.is_none() || dropped > 2 * OPERATIONS.len());
}

async fn a_row_whose_caller_hangs_up_is_recorded_once(database: TestDatabase) {
    let database = patient(&database.database);
    let world = World::new(&database).await;
    let (ledger, writer): (Ledger, _) = world.store.start_ledger(30 * DAY).unwrap();
    let mut rows = Vec::new();
    for round in 0..20 {
        for times in 1.. {
            let row = entry(world.key.id());
            rows.push(row.request_id);
            let pause = Duration::from_millis(round % 4);
            if let Some(recorded) = drop_when_pending(times, pause, ledger.record(row, None)).await {
                recorded.unwrap();
                break;
            }
        }
    }
    let queued = ledger.stats().queued;
    writer.stop();
    println!("{} rows; the callers of {} hung up; {queued} were still queued", rows.len(), rows.len() - 20);
    let all = RequestQuery { limit: 1000, ..RequestQuery::default() };
    let mut found: Vec<_> = world.store.requests(&Viewer::operator(), &all).await.unwrap();
    found.sort_unstable_by_key(|row| row.request_id);
    rows.sort_unstable();
    assert_eq!(found.iter().map(|row| row.request_id).collect::<Vec<_>>(), rows);
    let report = world.store.usage(&Viewer::operator(), &everything()).await.unwrap().unwrap();
    assert_eq!(report.totals.requests, rows.len() as u64, "each row is counted once");
}

/// The locks that operations wait for: the lock of all changes, and all tables.
const LOCKS: [(&str, &str); 2] = [
    ("the lock of changes", "SELECT pg_advisory_xact_lock(x'6164726961000002'::bigint)"),
    (
        "all tables",
        "LOCK TABLE accounts, sessions, links, audit, keys, requests, commits, rollups, sums
         IN ACCESS EXCLUSIVE MODE",
    ),
];

/// A replica that hangs may hold a lock; callers that stop waiting for it must leave its queue.
#[tokio::test]
async fn an_operation_that_waits_for_a_lock_ends_when_its_caller_hangs_up() {
    let database = patient(&TestDatabase::postgres().database);
    let world = World::new(&database).await;
    let server = watch(&database).await.unwrap();
    let holder = server.connect().await;
    let mut waited = 0;
    for (lock, take) in LOCKS {
        // Look-ups share a connection: their statements run to the end even if the caller has hung up.
        for (name, operation) in OPERATIONS.iter().filter(|(name, _)| !name.starts_with("authenticate")) {
            let fresh = world.fresh().await;
            holder.batch_execute(&format!("BEGIN; {take}")).await.unwrap();
            let mut operating = operation(&world, &fresh);
            let waits = async {
                while !server.somebody_waits().await {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let place = format!("{name}, dropped while it waited for {lock}");
            let completed = tokio::select! {
                result = &mut operating => Some(result),
                () = waits => None,
            };
            drop(operating);
            match completed {
                Some(result) => result.unwrap_or_else(|error| panic!("{place}: {error}")),
                None => {
                    waited += 1;
                    server.assert_nothing_is_left(&place, RESPONSE_LIMIT).await;
                }
            }
            holder.batch_execute("ROLLBACK").await.unwrap();
            world.serve_the_next_caller(&place).await;
        }
    }
    println!("{waited} operations waited for a lock");
    assert!(waited > OPERATIONS.len());
}

#[tokio::test]
async fn callers_that_hang_up_do_not_make_the_pool_exceed_its_limit() {
    let database = patient(&TestDatabase::postgres().database);
    let world = World::new(&database).await;
    let server = watch(&database).await.unwrap();
    let holder = server.connect().await;
    for (lock, take) in LOCKS {
        holder.batch_execute(&format!("BEGIN; {take}")).await.unwrap();
        for _ in 0..12 {
            let name = PersonName::parse("Ada").unwrap();
            let patience = Duration::from_millis(20);
            let impatient = tokio::time::timeout(patience, world.store.set_own_name(&world.session.viewer, &name));
            assert!(impatient.await.is_err(), "no caller gets past {lock}");
        }
        let open = server.connections().await;
        let limit = CONNECTIONS as i64 + OTHER_CONNECTIONS;
        assert!(open <= limit, "{open} connections with a limit of {limit}, after 12 callers gave up on {lock}");
        server.assert_nothing_is_left(lock, RESPONSE_LIMIT).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
        world.serve_the_next_caller(lock).await;
    }
}

/// Changes that wait for another replica do not use connections that reads need.
#[tokio::test]
async fn reads_continue_while_many_changes_wait_for_another_replica() {
    let database = patient(&TestDatabase::postgres().database);
    let world = World::new(&database).await;
    let server = watch(&database).await.unwrap();
    let holder = server.connect().await;
    holder.batch_execute(&format!("BEGIN; {}", LOCKS[0].1)).await.unwrap();
    let name = PersonName::parse("Ada").unwrap();
    let changes = (0..CONNECTIONS * 2).map(|_| world.store.set_own_name(&world.session.viewer, &name));
    let changes = futures_util::future::join_all(changes);
    let reading = async {
        while !server.somebody_waits().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let read = tokio::time::timeout(RESPONSE_LIMIT, world.store.list_keys(&world.session.viewer)).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
        read.expect("a read waits for changes").unwrap()
    };
    let (changed, _) = tokio::join!(changes, reading);
    changed.into_iter().for_each(|changed| changed.unwrap());
}

/// `None` for SQLite, where no operation waits.
async fn watch(database: &Database) -> Option<DatabaseWatch> {
    match database {
        Database::Sqlite(_) => None,
        Database::Postgres(settings) => Some(DatabaseWatch::new(&settings.url.to_string()).await),
    }
}
