//! Keys, recorded requests, and the reports made from them.

use std::time::{Duration, SystemTime};

use chat::{ApiKey, KeyId, KeyName, RequestId, Timestamp, TokenUsage};
use store::{
    Database, Entry, GroundingRecord, Grouping, KeyState, Ledger, LedgerWriter, NewKey, Outcome, Period, Phase,
    RecordedRequest, RequestQuery, Step, Store, Timings, UsageQuery, UsageReport, Viewer,
};
use testbed::Cluster;

use crate::database::{OK, TestDatabase, new_key};
use crate::on_each_backend;

on_each_backend!(
    a_key_is_accepted_until_another_process_revokes_it,
    unknown_and_expired_keys_are_refused,
    keys_are_listed_with_their_names_permissions_and_last_use,
    a_receipt_means_that_another_process_sees_the_row,
    grounding_records_are_stored,
    a_request_recorded_twice_counts_once,
    concurrent_rows_are_all_recorded_and_every_grouping_has_the_same_sum,
    old_rows_are_pruned_and_their_sums_stay,
    one_refused_row_does_not_fail_the_rest_of_its_group,
    rows_queued_before_the_stop_are_written,
);

const DAY: Duration = Duration::from_secs(86_400);
const DAYS_90: Duration = Duration::from_secs(90 * 86_400);
const FAILED: Outcome = Outcome { status: 502, code: Some("inference_error") };

struct Fixture {
    store: Store,
    database: TestDatabase,
}

impl Fixture {
    async fn new(database: TestDatabase) -> Self {
        Self { store: database.open().await, database }
    }

    async fn key(&self, name: &str) -> ApiKey {
        new_key(&self.store, name).await
    }

    fn ledger(&self) -> (Ledger, LedgerWriter) {
        self.store.start_ledger(DAYS_90).unwrap()
    }
}

async fn usage(store: &Store, since: Timestamp) -> UsageReport {
    let query = UsageQuery {
        period: Period::since(since),
        key: None,
        step: Step::Day,
        person: None,
        group: Some(Grouping::Key),
    };
    store.usage().report(&Viewer::operator(), &query).await.unwrap().unwrap()
}

async fn newest(store: &Store, limit: u32) -> Vec<RecordedRequest> {
    store.usage().requests(&Viewer::operator(), &RequestQuery { limit, ..RequestQuery::default() }).await.unwrap()
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

fn name(text: &str) -> KeyName {
    KeyName::parse(text).unwrap()
}

fn entry(key: KeyId, outcome: Outcome, tokens: Option<u32>) -> Entry {
    entry_at(now(), key, outcome, tokens)
}

fn entry_at(time: Timestamp, key: KeyId, outcome: Outcome, tokens: Option<u32>) -> Entry {
    Entry {
        request_id: RequestId::at_micros(time.as_millis() * 1000, RequestId::now().unix_micros() << 40 | unique()),
        key,
        owner: None,
        project: None,
        outcome,
        usage: TokenUsage { prompt: tokens, completion: tokens, total: tokens.map(|tokens| 2 * tokens) },
        timings: Timings {
            inference: Some(Duration::from_millis(30)),
            total: Duration::from_millis(40),
            ..Timings::default()
        },
        grounding: None,
        inference: Default::default(),
    }
}

fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(4);
    NEXT.fetch_add(4, std::sync::atomic::Ordering::Relaxed)
}

async fn a_key_is_accepted_until_another_process_revokes_it(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let key = fixture.key("mine").await;
    let caller = fixture.store.keys().authenticate(&key).await.unwrap().unwrap();
    assert_eq!(caller.key(), key.id());
    assert!(caller.may_complete());

    let elsewhere = fixture.database.open().await;
    let revoked_at = elsewhere.keys().revoke(&Viewer::operator(), key.id()).await.unwrap();
    assert!(revoked_at.is_some());
    assert!(fixture.store.keys().authenticate(&key).await.unwrap().is_none());
    assert_eq!(
        elsewhere.keys().revoke(&Viewer::operator(), key.id()).await.unwrap(),
        revoked_at,
        "revoking again changes nothing"
    );
}

async fn unknown_and_expired_keys_are_refused(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let unknown = ApiKey::generate().unwrap();
    assert!(fixture.store.keys().authenticate(&unknown).await.unwrap().is_none());

    let expired = NewKey { name: name("old"), completions: true, expires_at: Some(now()), project: None };
    let expired = fixture.store.keys().create(&Viewer::operator(), expired, u64::MAX).await.unwrap();
    assert!(fixture.store.keys().authenticate(&expired).await.unwrap().is_none());
    assert_eq!(fixture.store.keys().list(&Viewer::operator()).await.unwrap()[0].state(now()), KeyState::Expired);
    assert_eq!(fixture.store.keys().revoke(&Viewer::operator(), unknown.id()).await.unwrap(), None);
    assert!(!fixture.store.keys().rename(&Viewer::operator(), unknown.id(), &name("x")).await.unwrap());
}

async fn keys_are_listed_with_their_names_permissions_and_last_use(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let first = fixture.key("first").await;
    let silent = NewKey {
        name: name("no completions"),
        completions: false,
        expires_at: Some(now() + Duration::from_secs(60)),
        project: None,
    };
    let second = fixture.store.keys().create(&Viewer::operator(), silent, u64::MAX).await.unwrap();
    assert!(!fixture.store.keys().authenticate(&second).await.unwrap().unwrap().may_complete());
    assert!(fixture.store.keys().rename(&Viewer::operator(), first.id(), &name("renamed")).await.unwrap());

    let (ledger, writer) = fixture.ledger();
    let used = entry(first.id(), OK, None);
    let used_at = used.request_id.timestamp();
    ledger.record(used, None).await.unwrap();
    writer.stop();

    let keys = fixture.store.keys().list(&Viewer::operator()).await.unwrap();
    assert_eq!(fixture.store.keys().count().await.unwrap(), 2);
    let names: Vec<_> = keys.iter().map(|key| (key.name.as_str(), key.completions, key.last_used_at)).collect();
    assert!(names.contains(&("renamed", true, Some(used_at))), "{names:?}");
    assert!(names.contains(&("no completions", false, None)), "{names:?}");
}

async fn a_receipt_means_that_another_process_sees_the_row(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let key = fixture.key("k").await.id();
    let (ledger, _writer) = fixture.ledger();
    let row = entry(key, OK, Some(21));
    let receipt = ledger.record(row.clone(), None).await.unwrap();
    assert_eq!(receipt.request_id(), row.request_id);

    let seen = newest(&fixture.database.open().await, 10).await;
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].request_id, seen[0].status, seen[0].code.as_deref()), (row.request_id, 200, None));
    assert_eq!(seen[0].usage, row.usage);
    assert_eq!((seen[0].inference_us, seen[0].total_us, seen[0].queue_us), (Some(30_000), 40_000, None));
}

async fn grounding_records_are_stored(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let key = fixture.key("k").await.id();
    let (ledger, writer) = fixture.ledger();
    let records = [
        None,
        Some(GroundingRecord { score: 0.25, scorer: 3, sources: None }),
        Some(GroundingRecord { score: 1.0, scorer: 3, sources: Some(0) }),
        Some(GroundingRecord { score: 0.5, scorer: u16::MAX, sources: Some(8) }),
    ];
    for grounding in records {
        let mut row = entry(key, OK, None);
        row.grounding = grounding;
        row.timings.search = grounding.and_then(|grounding| grounding.sources).map(|_| Duration::from_millis(2));
        ledger.record(row.clone(), None).await.unwrap();
        let kept = newest(&fixture.store, 10).await.into_iter().find(|kept| kept.request_id == row.request_id);
        assert_eq!(kept.unwrap().grounding, grounding);
    }
    writer.stop();
    assert_eq!(usage(&fixture.store, Timestamp::default()).await.all_latencies().count(Phase::Search), 2);
}

async fn a_request_recorded_twice_counts_once(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let key = fixture.key("k").await.id();
    let (ledger, writer) = fixture.ledger();
    let row = entry(key, OK, Some(5));
    ledger.record(row.clone(), None).await.unwrap();
    ledger.record(row.clone(), None).await.unwrap();
    writer.stop();
    let report = usage(&fixture.store, Timestamp::default()).await;
    assert_eq!((report.totals.requests, report.totals.prompt.sum), (1, 5));
    assert_eq!(newest(&fixture.store, 10).await.len(), 1);
}

async fn concurrent_rows_are_all_recorded_and_every_grouping_has_the_same_sum(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let keys = [fixture.key("a").await.id(), fixture.key("b").await.id(), fixture.key("c").await.id()];
    let (ledger, writer) = fixture.ledger();
    // Over four days, so that hourly and daily sums are both used.
    let rows: Vec<_> = (0..2000u64)
        .map(|n| {
            let at = now().saturating_sub(Duration::from_millis(n * 170_000));
            let (outcome, tokens) = if n % 5 == 0 { (FAILED, None) } else { (OK, Some(n as u32)) };
            let mut entry = entry_at(at, keys[n as usize % 3], outcome, tokens);
            entry.timings.total = Duration::ZERO; // queued on arrival
            entry
        })
        .collect();
    let mut waiting = tokio::task::JoinSet::new();
    for row in rows.clone() {
        let ledger = ledger.clone();
        waiting.spawn(async move { ledger.record(row, None).await });
    }
    while let Some(recorded) = waiting.join_next().await {
        recorded.unwrap().unwrap();
    }
    writer.stop();

    for days in [1, 2, 3, 10] {
        let report = usage(&fixture.store, now().saturating_sub(days * DAY)).await;
        let expected: Vec<_> = rows.iter().filter(|row| row.request_id.timestamp() >= report.since).collect();
        let sum: u64 = expected.iter().filter_map(|row| row.usage.prompt).map(u64::from).sum();
        let measured = expected.iter().filter(|row| row.usage.prompt.is_some()).count() as u64;

        assert_eq!(report.totals.requests, expected.len() as u64);
        assert_eq!((report.totals.prompt.sum, report.totals.prompt.count), (sum, measured));
        let by_key: u64 = report.groups.iter().map(|key| key.figures.requests).sum();
        let succeeded: u64 = report.groups.iter().map(|key| key.succeeded).sum();
        let by_outcome: u64 = report.by_outcome.iter().map(|outcome| outcome.figures.requests).sum();
        assert_eq!((by_key, by_outcome, succeeded), (report.totals.requests, report.totals.requests, measured));
        assert_eq!(report.all_latencies().count(Phase::Total), report.totals.requests);
        assert_eq!(report.all_latencies().count(Phase::Persist), report.totals.requests);
    }
    let all = newest(&fixture.store, 10_000).await;
    assert_eq!(all.len(), rows.len());
    assert!(all.is_sorted_by_key(|row| std::cmp::Reverse(row.request_id)), "newest first");
    assert!(all.iter().any(|row| row.persist_us.is_some()));
}

async fn old_rows_are_pruned_and_their_sums_stay(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let key = fixture.key("k").await.id();
    let (ledger, writer) = fixture.ledger();
    for age in [1, 89, 91, 400] {
        ledger.record(entry_at(now().saturating_sub(age * DAY), key, OK, Some(1)), None).await.unwrap();
    }
    writer.stop();
    // A new writer deletes old rows immediately.
    let (_ledger, writer) = fixture.ledger();
    let mut left = usize::MAX;
    for _ in 0..200 {
        left = newest(&fixture.store, 10).await.len();
        if left == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(left, 2);
    assert_eq!(usage(&fixture.store, Timestamp::default()).await.totals.requests, 4);
    writer.stop();
}

#[tokio::test]
async fn old_commits_are_deleted_in_batches() {
    let fixture = Fixture::new(TestDatabase::sqlite()).await;
    let Database::Sqlite(path) = &fixture.database.database else { panic!("a file") };
    let file = rusqlite::Connection::open(path).unwrap();
    file.execute_batch(
        "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 1200)
             INSERT INTO commits SELECT n, 1000000 FROM number",
    )
    .unwrap();
    let young = now().as_millis() * 1000;
    file.execute("INSERT INTO commits VALUES (?1, ?2), (?1 + 1, ?2), (?1 + 2, ?2)", [young << 10, young]).unwrap();
    let (_ledger, writer) = fixture.ledger();
    let mut left = u64::MAX;
    for _ in 0..500 {
        left = file.query_row("SELECT count(*) FROM commits", [], |row| row.get(0)).unwrap();
        if left == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(left, 3, "of 1,200 old commits and 3 recent ones");
    writer.stop();
}

async fn one_refused_row_does_not_fail_the_rest_of_its_group(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let key = fixture.key("k").await.id();
    let (ledger, writer) = fixture.ledger();
    // Microseconds that overflow their column: only this row is refused.
    let mut bad = entry(key, OK, None);
    bad.timings.total = Duration::MAX;
    let (before, refused, after) = tokio::join!(
        ledger.record(entry(key, OK, None), None),
        ledger.record(bad, None),
        ledger.record(entry(key, OK, None), None)
    );
    assert!(before.is_ok() && after.is_ok());
    assert_eq!(refused.unwrap_err(), store::RecordError::RowRefused);
    assert!(ledger.is_healthy());
    writer.stop();
    assert_eq!(usage(&fixture.store, Timestamp::default()).await.totals.requests, 2);
}

async fn rows_queued_before_the_stop_are_written(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let key = fixture.key("k").await.id();
    let (ledger, writer) = fixture.ledger();
    for _ in 0..3000 {
        ledger.enqueue(entry(key, OK, None), None).unwrap();
    }
    writer.stop();
    assert_eq!(usage(&fixture.store, Timestamp::default()).await.totals.requests, 3000);
    assert_eq!(ledger.record(entry(key, OK, None), None).await.unwrap_err(), store::RecordError::Stopped);
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let (file, server) = (TestDatabase::sqlite(), TestDatabase::postgres());
    for database in [&file, &server] {
        drop(database.open().await);
        match &database.database {
            Database::Sqlite(path) => {
                rusqlite::Connection::open(path).unwrap().pragma_update(None, "user_version", 999).unwrap();
            }
            Database::Postgres(settings) => {
                let name = settings.url.to_string();
                let name = name.rsplit_once('/').unwrap().1;
                Cluster::shared().sql(name, "UPDATE adriaticum_schema SET version = 999");
            }
        }
        let refusal = Store::open(&database.database).await.err().unwrap().to_string();
        assert!(refusal.contains("newer version"), "{refusal}");
    }
}

#[tokio::test]
async fn both_backends_report_the_same_for_the_same_rows() {
    let (file, server) = (Fixture::new(TestDatabase::sqlite()).await, Fixture::new(TestDatabase::postgres()).await);
    let keys = ["000000000001", "000000000002", "000000000003"].map(|key| key.parse::<KeyId>().unwrap());
    let owners = [None, Some("A00000000001".parse().unwrap()), Some("A00000000002".parse().unwrap())];
    // Scattered over times and latencies, so that existing and new buckets are merged.
    let rows: Vec<_> = (0..600u64)
        .map(|number| {
            let chance = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (outcome, tokens) = if chance % 5 == 0 { (FAILED, None) } else { (OK, Some(number as u32)) };
            let key = (chance >> 20) as usize % 3;
            let mut row = entry_at(
                now().saturating_sub(Duration::from_millis((chance >> 40) % 20_000_000)),
                keys[key],
                outcome,
                tokens,
            );
            row.owner = owners[key];
            row.timings.total = Duration::from_micros(1 << ((chance >> 50) % 30));
            row.timings.queue = (chance % 3 == 0).then_some(Duration::from_micros(chance >> 48));
            row
        })
        .collect();
    let mut reports = Vec::new();
    for fixture in [&file, &server] {
        let (ledger, writer) = fixture.ledger();
        for group in rows.chunks(7) {
            group.iter().for_each(|row| ledger.enqueue(row.clone(), None).unwrap());
            ledger.record(group[0].clone(), None).await.unwrap(); // an uncounted duplicate, to wait for the others
        }
        writer.stop();
        let report = usage(&fixture.store, Timestamp::default()).await;
        let phases = [Phase::Total, Phase::Queue, Phase::Inference];
        let shares = [0.0, 0.25, 0.5, 0.9, 0.99, 1.0];
        let percentiles = phases.map(|phase| shares.map(|share| report.all_latencies().percentile(phase, share)));
        reports.push((report.totals, report.succeeded, report.by_outcome, percentiles));
    }
    assert_eq!(reports[0], reports[1]);
    assert_eq!(reports[0].0.requests, 600);
}
