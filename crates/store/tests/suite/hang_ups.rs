//! Callers that hang up: each public future of the store is dropped at each await, and also while it waits for a lock of
//! another session. Afterwards no statement is running, no transaction is open, no lock is held or waited for, the pool is
//! within its limit, and the next caller is served promptly.
//!
//! Faults found: a transaction whose `BEGIN` was abandoned returned to the pool open, with the lock of all changes (in 35
//! of 40 rounds). After this was fixed, an abandoned statement still continued until the database's timeout: it kept its
//! locks and its place in the queue for others. Its connection was either given to the next caller, who then waited for
//! it, or missing in the pool's count: 12 callers that hung up left 12 connections with a limit of 4.

use std::path::Path;
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
    (|$world:ident, $fresh:ident| { $($subject:ident$(().$name:ident)?($($argument:expr),*),)* }) => {
        &[$((concat!(stringify!($subject) $(, ".", stringify!($name))?), |$world, $fresh| {
            let _ = $fresh; // not all use it
            Box::pin(async move { outcome($world.store.$subject$(().$name)?($($argument),*).await) })
        })),*]
    };
}

/// Every public future of a store.
const OPERATIONS: &[Operation] = operations!(|world, fresh| {
    keys().authenticate(&world.key),
    keys().create(&world.session.viewer, new_key(), u64::MAX),
    keys().list(&world.session.viewer),
    keys().search(&world.session.viewer, &KeySearch::default(), KeyOrder::Name, false),
    keys().with_ids(&world.session.viewer, &[fresh.key]),
    keys().find(&world.session.viewer, fresh.key),
    keys().exist(&world.session.viewer),
    keys().count(),
    keys().rename(&world.session.viewer, fresh.key, &KeyName::parse("renamed").unwrap()),
    keys().revoke(&world.session.viewer, fresh.key),
    keys().playground_caller(&world.session.viewer),
    accounts().count(),
    accounts().credentials(&email("ada")),
    accounts().password(&world.session.viewer),
    accounts().set_password(&world.session.viewer, world.session.id, "hash", "hash"),
    accounts().set_own_name(&world.session.viewer, &PersonName::parse("Ada").unwrap()),
    accounts().list(world.session.viewer.admin().unwrap()),
    accounts().set_role(world.session.viewer.admin().unwrap(), world.other, Role::Developer),
    accounts().set_access(world.session.viewer.admin().unwrap(), world.other, Access::Enabled),
    links().create_setup(),
    links().needs_set_up(),
    links().find(&fresh.invitation),
    links().use_link(&fresh.invitation, &new_account(&fresh.key.to_string()), ADDRESS),
    links().reset_password(&fresh.reset, "hash", ADDRESS),
    links().invite(world.session.viewer.admin().unwrap(), Role::Developer, "Eve", DAY),
    links().create_reset(world.session.viewer.admin().unwrap(), &email("bob")),
    links().list(world.session.viewer.admin().unwrap()),
    links().revoke(world.session.viewer.admin().unwrap(), fresh.link),
    sessions().begin(world.other, &origin(), Proof::Password("hash")),
    sessions().find(&world.token, ADDRESS),
    sessions().is_valid(&world.session.viewer),
    sessions().list(&world.session.viewer),
    sessions().list_of(world.session.viewer.admin().unwrap(), world.other),
    accounts().end_session(world.session.viewer.admin().unwrap(), world.other, fresh.session),
    sessions().end(&world.session.viewer, fresh.session),
    sessions().end_others(&world.session.viewer, world.session.id),
    audit_log().search(world.session.viewer.admin().unwrap(), &AuditQuery { limit: 10, ..AuditQuery::default() }),
    audit_log().record_wrong_passwords(&wrong_password()),
    usage().report(&world.session.viewer, &everything()),
    usage().by_key(&world.session.viewer, everything().period),
    usage().requests(&world.session.viewer, &RequestQuery { limit: 10, ..RequestQuery::default() }),
    usage().search_requests(&world.session.viewer, &RequestQuery { limit: 10, ..RequestQuery::default() }),
    usage().request(&world.session.viewer, RequestId::now()),
    check_integrity(),
    sessions().addresses(&email("ada")),
    keys().rotate(&world.session.viewer, fresh.key, DAY),
    keys().end_overlap(&world.session.viewer, fresh.key),
    second_factors().accounts_without(world.session.viewer.admin().unwrap()),
    keys().update(&world.session.viewer, fresh.key, &[KeyChange::Completions(false), KeyChange::Owner(Some(world.other))]),
    limits().set(world.session.viewer.admin().unwrap(), limit(fresh.key)),
    limits().remove(world.session.viewer.admin().unwrap(), Scope::Key(fresh.key), limit(fresh.key).kind),
    prices().list(&world.session.viewer),
    prices().set(world.session.viewer.admin().unwrap(), None, price(), "EUR".parse().ok()),
    prices().remove(world.session.viewer.admin().unwrap(), None),
    limits().list(&world.session.viewer),
    limits().of_key(&world.session.viewer, fresh.key),
    keys().authenticate_again(&world.caller),
    limits().reserve(&world.caller, RequestId::now(), 10),
    accounts().count_active_keys(world.session.viewer.admin().unwrap(), world.other),
    accounts().revoke_keys(world.session.viewer.admin().unwrap(), fresh.leaver),
    accounts().set_profile(
        world.session.viewer.admin().unwrap(),
        fresh.leaver,
        &PersonName::parse("Eve").unwrap(),
        &email(&format!("e{}", fresh.key))
    ),
    accounts().delete(world.session.viewer.admin().unwrap(), fresh.leaver),
    notices().add(fresh.key.as_str(), "{}"),
    notices().claim(DAY),
    notices().finish(fresh.key.as_str()),
    notices().retry(fresh.key.as_str(), DAY),
    keys().count_expiring(&world.session.viewer),
    keys().expiring(),
    accounts().end_sessions(world.session.viewer.admin().unwrap(), world.other),
    provider_accounts().sign_in(&provided_person(fresh.key), &origin()),
    provider_accounts().end_sessions("https://login.example.com", Some("somebody"), None, ADDRESS),
    provider_accounts().disconnect(world.session.viewer.admin().unwrap(), Some(world.other)),
    second_factors().of(world.other),
    second_factors().authenticator_app(world.other),
    second_factors().set_authenticator_app(
        &world.session.viewer,
        world.session.id,
        "GEZDGNBVGY3TQOJQ",
        1,
        &RecoveryCode::generate_all().unwrap()
    ),
    second_factors().remove_authenticator_app(&world.session.viewer),
    second_factors().add_passkey(&world.session.viewer, world.session.id, fresh.key.as_str(), "My phone", "{}"),
    second_factors().passkey(fresh.key.as_str()),
    second_factors().passkey_owner(fresh.key.as_str()),
    sign_ins().confirm_with_password(&world.session.viewer, "hash"),
    sign_ins().confirm_with_passkey(&world.session.viewer, &used_passkey(fresh.key)),
    provider_accounts().deleted_people(world.session.viewer.admin().unwrap()),
    provider_accounts().allow_return(world.session.viewer.admin().unwrap(), fresh.leaver),
    second_factors().remove_passkey(&world.session.viewer, fresh.key.as_str()),
    second_factors().set_recovery_codes(&world.session.viewer, &RecoveryCode::generate_all().unwrap()),
    second_factors().reset(world.session.viewer.admin().unwrap(), world.other),
    second_factors().is_required(),
    second_factors().require(world.session.viewer.admin().unwrap(), false),
    sign_ins().create_challenge(ChallengePurpose::AddPasskey, world.other, "{}"),
    sign_ins().begin_second_step(&verified(world.other), ""),
    sign_ins().sign_in_secret(),
    search_index().expected(),
    search_index().expect("index"),
    search_index().forget(),
    sign_ins().challenge(ChallengePurpose::SecondFactor, &world.token),
    sign_ins().count_code(&world.token, true),
    sign_ins().take_challenge(ChallengePurpose::AddPasskey, &world.token),
    sign_ins().failures(&[ADDRESS]),
    sign_ins().add_failure(&[ADDRESS, "somebody"]),
    sign_ins().forget_failures("somebody", ADDRESS),
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
            Self::Refused(_) => None,
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
        let ada = store.links().invite(operator.admin().unwrap(), Role::Admin, "ada", DAY).await.unwrap();
        let ada = store.links().use_link(&ada, &new_account("ada"), ADDRESS).await.unwrap();
        let bob = store.links().invite(operator.admin().unwrap(), Role::Developer, "bob", DAY).await.unwrap();
        let other = store.links().use_link(&bob, &new_account("bob"), ADDRESS).await.unwrap();
        let begun = store.sessions().begin(ada, &origin(), Proof::Password("hash")).await.unwrap();
        let key = store.keys().create(&begun.session.viewer, new_key(), u64::MAX).await.unwrap();
        for kind in LimitKind::ALL {
            let limit = Limit { scope: Scope::Key(key.id()), kind, amount: 1_000_000 };
            assert!(store.limits().set(operator.admin().unwrap(), limit).await.unwrap());
        }
        let caller = store.keys().authenticate(&key).await.unwrap().unwrap();
        Self { store, key, token: begun.token, session: begun.session, other, caller }
    }

    async fn fresh(&self) -> Fresh {
        let (store, viewer) = (&self.store, &self.session.viewer);
        let admin = viewer.admin().unwrap();
        let key = store.keys().create(viewer, new_key(), u64::MAX).await.unwrap().id();
        let leaver = store.links().invite(admin, Role::Developer, "Eve", DAY).await.unwrap();
        let leaver = store.links().use_link(&leaver, &new_account(&format!("l{key}")), ADDRESS).await.unwrap();
        Fresh {
            invitation: store.links().invite(admin, Role::Developer, "Eve", DAY).await.unwrap(),
            link: store.links().list(admin).await.unwrap().pop().unwrap().id,
            reset: store.links().create_reset(admin, &email("bob")).await.unwrap(),
            key,
            leaver,
            session: store.sessions().begin(self.other, &origin(), Proof::Password("hash")).await.unwrap().session.id,
        }
    }

    /// A read, a change and a look-up, in this order.
    async fn serve_the_next_caller(&self, after: &str) {
        let began = Instant::now();
        let served = async {
            self.store.keys().list(&self.session.viewer).await?;
            self.store.accounts().set_own_name(&self.session.viewer, &PersonName::parse("Ada").unwrap()).await?;
            self.store.keys().authenticate(&self.key).await
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    let mut names = futures_of("", &lib, "impl Store {");
    let subjects = lib.split("\nsubjects! {\n").nth(1).unwrap().split("\n}\n").next().unwrap();
    for line in subjects.lines().filter(|line| !line.contains("///")) {
        let (accessor, handle) = line.trim_start().trim_end_matches(',').split_once(": ").unwrap();
        let prefix = format!("{accessor}.");
        for folder in
            std::fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
        {
            for file in
                std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file())
            {
                names.extend(futures_of(
                    &prefix,
                    &std::fs::read_to_string(file).unwrap(),
                    &format!("impl {handle}<'_> {{"),
                ));
            }
        }
    }
    names.sort_unstable();
    let mut tested: Vec<_> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    tested.sort_unstable();
    assert_eq!(names, tested);
}

/// The names of the public futures in a block of a source, with a prefix.
fn futures_of(prefix: &str, source: &str, block: &str) -> Vec<String> {
    let blocks = source.split(block).skip(1).map(|rest| rest.split("\n}\n").next().unwrap());
    let functions = blocks.flat_map(|block| block.split("\n    pub async fn ").skip(1));
    let methods = functions.filter_map(|function| {
        let (name, parameters) = function.split_once('(').unwrap();
        let parameters = parameters.trim_start();
        (parameters.starts_with("self") || parameters.starts_with("&self")).then(|| format!("{prefix}{name}"))
    });
    methods.collect()
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
    let mut found: Vec<_> = world.store.usage().requests(&Viewer::operator(), &all).await.unwrap();
    found.sort_unstable_by_key(|row| row.request_id);
    rows.sort_unstable();
    assert_eq!(found.iter().map(|row| row.request_id).collect::<Vec<_>>(), rows);
    let report = world.store.usage().report(&Viewer::operator(), &everything()).await.unwrap().unwrap();
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
        for (name, operation) in OPERATIONS.iter().filter(|(name, _)| !name.starts_with("keys.authenticate")) {
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
            let impatient =
                tokio::time::timeout(patience, world.store.accounts().set_own_name(&world.session.viewer, &name));
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
    let changes = (0..CONNECTIONS * 2).map(|_| world.store.accounts().set_own_name(&world.session.viewer, &name));
    let changes = futures_util::future::join_all(changes);
    let reading = async {
        while !server.somebody_waits().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let read = tokio::time::timeout(RESPONSE_LIMIT, world.store.keys().list(&world.session.viewer)).await;
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
