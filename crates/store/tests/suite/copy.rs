//! Copies from SQLite to PostgreSQL: complete, repeatable, and never over a database that has been used.

use std::time::Duration;

use chat::{RequestId, Timestamp};
use store::{
    AuditQuery, CopyError, Database, GroundingRecord, Grouping, KeyChange, Origin, Period, PersonName,
    PostgresSettings, Price, Project, RequestQuery, Role, Step,
};
use store::{Proof, Store, UsageQuery, Viewer};
use testbed::Cluster;

use crate::database::{TestDatabase, entry, new_key};

const DAY: Duration = Duration::from_secs(86_400);
const DAY_MICROS: u64 = 86_400_000_000;

#[tokio::test]
async fn a_copy_is_complete_repeatable_and_only_reads_the_source() {
    let (source, target) = (TestDatabase::sqlite(), TestDatabase::postgres());
    let original = source.open().await;
    fill(&original).await;
    let before = fingerprint(&source);

    let copied = copy(&source, &target).await.unwrap();
    let requests = copied.iter().find(|copied| copied.table == "requests").unwrap();
    assert_eq!((requests.rows, requests.sums), (300, 18));
    assert_eq!(fingerprint(&source), before);
    assert_same(&original, &target.open().await).await;
    let url = target.database.to_string();
    let others = Cluster::shared().sql(url.rsplit_once('/').unwrap().1, "SELECT count(*) FROM requests_others");
    assert_eq!(others, "6", "only rows that are too old for a partition are in the default one");

    // After more changes the copy is repeated.
    fill(&original).await;
    copy(&source, &target).await.unwrap();
    let copy_of_it = target.open().await;
    assert_same(&original, &copy_of_it).await;

    // Once the copy has been used, it is not overwritten.
    let (ledger, writer) = copy_of_it.start_ledger(3650 * DAY).unwrap();
    let key = copy_of_it.keys().list(&Viewer::operator()).await.unwrap()[0].id;
    ledger.record(entry(key), None).await.unwrap();
    writer.stop();
    assert!(matches!(copy(&source, &target).await, Err(CopyError::Occupied)));
    assert_eq!(requests_of(&copy_of_it).await.len(), 601);
    new_key(&copy_of_it, "the numbering of the audit log continues").await;
}

#[tokio::test]
async fn a_used_database_is_refused_as_a_target() {
    let (source, target) = (TestDatabase::sqlite(), TestDatabase::postgres());
    source.open().await;
    new_key(&target.open().await, "mine").await;
    assert!(matches!(copy(&source, &target).await, Err(CopyError::Occupied)));
}

async fn copy(source: &TestDatabase, target: &TestDatabase) -> Result<Vec<store::CopiedTable>, CopyError> {
    let (Database::Sqlite(from), Database::Postgres(to)) = (&source.database, &target.database) else { panic!() };
    store::copy(from, &PostgresSettings { connections: 1, ..to.clone() }, &mut |_, done, total| assert!(done <= total))
        .await
}

/// Rows in every table.
async fn fill(store: &Store) {
    let operator = Viewer::operator();
    let admin = operator.admin().unwrap();
    let email = format!("{}@example.com", RequestId::now());
    let link = store.links().invite(admin, Role::Admin, "Ada, née Žižek", DAY).await.unwrap();
    let new = store::NewAccount {
        email: email.parse().unwrap(),
        name: PersonName::parse("Ada").unwrap(),
        password: "hash".into(),
    };
    let account = store.links().use_link(&link, &new, "10.0.0.1").await.unwrap();
    let origin = Origin { address: "10.0.0.1".into(), agent: "a browser".into() };
    let begun = store.sessions().begin(account, &origin, Proof::Password("hash")).await.unwrap();
    store.links().invite(admin, Role::Developer, "Eve", DAY).await.unwrap();
    store.keys().playground_caller(&begun.session.viewer).await.unwrap();
    let keys = [new_key(store, "one").await.id(), new_key(store, "two").await.id()];
    store.keys().revoke(&operator, keys[1]).await.unwrap();
    store.keys().update(&operator, keys[0], &[KeyChange::Owner(Some(account))]).await.unwrap();
    let project = Project::parse("search").unwrap();
    assert!(store.keys().update(&operator, keys[0], &[KeyChange::Project(Some(project.clone()))]).await.unwrap());
    let price = Price { prompt: "0.2".parse().unwrap(), completion: "0.8".parse().unwrap() };
    store.prices().set(admin, Some(&project), price, "EUR".parse().ok()).await.unwrap();
    let (ledger, writer) = store.start_ledger(3650 * DAY).unwrap();
    let now = RequestId::now().unix_micros();
    for number in 0..300_u64 {
        let mut row = entry(keys[number as usize % 2]);
        // Some are too old for a partition.
        let age = if number % 50 == 0 { 500 * DAY_MICROS } else { number * DAY_MICROS / 9 };
        row.request_id = RequestId::at_micros(now - age, row.request_id.unix_micros() << 20 | number << 2);
        row.grounding = (number % 3 == 0).then_some(GroundingRecord { score: 0.3, scorer: 4, sources: Some(2) });
        row.timings.search = (number % 3 == 0).then_some(Duration::from_millis(number));
        ledger.record(row, None).await.unwrap();
    }
    writer.stop();
}

async fn assert_same(original: &Store, copy: &Store) {
    let operator = Viewer::operator();
    let admin = operator.admin().unwrap();
    assert_eq!(original.keys().list(&operator).await.unwrap(), copy.keys().list(&operator).await.unwrap());
    assert_eq!(original.accounts().list(admin).await.unwrap(), copy.accounts().list(admin).await.unwrap());
    assert_eq!(original.links().list(admin).await.unwrap().len(), copy.links().list(admin).await.unwrap().len());
    let audit = async |store: &Store| {
        let lines = store
            .audit_log()
            .search(admin, &AuditQuery { limit: 1000, ..AuditQuery::default() })
            .await
            .unwrap()
            .records;
        lines
            .into_iter()
            .map(|line| (line.number, line.at, line.who, line.action, line.subject, line.details))
            .collect::<Vec<_>>()
    };
    assert_eq!(audit(original).await, audit(copy).await);
    assert_eq!(requests_of(original).await, requests_of(copy).await);
    let query = UsageQuery {
        period: Period::since(Timestamp::default()),
        key: None,
        step: Step::Hour,
        person: None,
        group: Some(Grouping::Person),
    };
    let usage = async |store: &Store| {
        let mut report = store.usage().report(&operator, &query).await.unwrap().unwrap();
        report.until = Timestamp::default();
        report
    };
    assert_eq!(usage(original).await, usage(copy).await);
    assert_eq!(original.prices().list(&operator).await.unwrap(), copy.prices().list(&operator).await.unwrap());
}

async fn requests_of(store: &Store) -> Vec<store::RecordedRequest> {
    let all = RequestQuery { limit: 10_000, ..RequestQuery::default() };
    store.usage().requests(&Viewer::operator(), &all).await.unwrap()
}

/// Every byte of the database file and its write-ahead log.
fn fingerprint(database: &TestDatabase) -> Vec<Vec<u8>> {
    let Database::Sqlite(path) = &database.database else { panic!("a file") };
    let log = path.with_extension("db-wal");
    [path, &log].map(|file| std::fs::read(file).unwrap_or_default()).into()
}
