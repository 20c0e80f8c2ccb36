//! Many processes on one database: each sees the changes of the others, and no row is lost or counted twice.

use std::time::Duration;

use chat::{RequestId, Timestamp};
use store::{Grouping, Outcome, Period, RequestQuery, Step, Store, UsageQuery, Viewer};
use testbed::Cluster;

use crate::database::{TestDatabase, entry, new_key};
use crate::on_each_backend;

on_each_backend!(many_processes_can_start_concurrently, concurrent_replicas_count_every_row_once);

async fn many_processes_can_start_concurrently(database: TestDatabase) {
    let database = &database.database;
    let opening = (0..8).map(|_| {
        tokio::spawn({
            let database = database.clone();
            async move { Store::open(&database).await.map(drop) }
        })
    });
    for opened in opening.collect::<Vec<_>>() {
        opened.await.unwrap().unwrap();
    }
}

async fn concurrent_replicas_count_every_row_once(database: TestDatabase) {
    const REPLICAS: usize = 4;
    const ROWS: usize = 400;
    let first = database.open().await;
    let mut keys = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        keys.push(new_key(&first, name).await.id());
    }
    let mut recording = tokio::task::JoinSet::new();
    for replica in 0..REPLICAS {
        let (store, keys) = (database.open().await, keys.clone());
        recording.spawn(async move {
            let (ledger, writer) = store.start_ledger(Duration::from_secs(86_400)).unwrap();
            let mut waiting = tokio::task::JoinSet::new();
            for number in 0..ROWS {
                let ledger = ledger.clone();
                // Each replica uses the keys in a different order.
                let mut row = entry(keys[(number * (replica + 1)) % keys.len()]);
                row.request_id = RequestId::now();
                row.timings.total = Duration::ZERO; // queued on arrival
                if number % 7 == 0 {
                    row.outcome = Outcome { status: 502, code: Some("inference_error") };
                }
                waiting.spawn(async move { ledger.record(row, None).await });
            }
            while let Some(recorded) = waiting.join_next().await {
                recorded.unwrap().unwrap();
            }
            tokio::task::spawn_blocking(|| writer.stop()).await.unwrap();
        });
    }
    while let Some(recorded) = recording.join_next().await {
        recorded.unwrap();
    }
    let query = UsageQuery {
        period: Period::since(Timestamp::default()),
        key: None,
        step: Step::Hour,
        person: None,
        group: Some(Grouping::Key),
    };
    let report = first.usage().report(&Viewer::operator(), &query).await.unwrap().unwrap();
    let all = (REPLICAS * ROWS) as u64;
    assert_eq!((report.totals.requests, report.totals.total.sum), (all, all * 5));
    assert_eq!(report.groups.iter().map(|key| key.figures.requests).sum::<u64>(), all);
    assert_eq!(report.by_outcome.iter().map(|outcome| outcome.figures.requests).sum::<u64>(), all);
    for phase in [store::Phase::Total, store::Phase::Persist] {
        assert_eq!(report.all_latencies().count(phase), all, "{phase:?}");
    }
    let rows = RequestQuery { limit: 10_000, ..RequestQuery::default() };
    assert_eq!(first.usage().requests(&Viewer::operator(), &rows).await.unwrap().len() as u64, all);
}

#[tokio::test]
async fn an_older_replica_keeps_working_after_a_newer_migration() {
    let database = TestDatabase::postgres();
    let old = database.open().await;
    let key = new_key(&old, "k").await;
    let (ledger, writer) = old.start_ledger(Duration::from_secs(86_400)).unwrap();
    ledger.record(entry(key.id()), None).await.unwrap();
    let name = database.database.to_string();
    let name = name.rsplit_once('/').unwrap().1;
    let later = "ALTER TABLE requests ADD COLUMN later text; ALTER TABLE rollups ADD COLUMN later bigint;
        ALTER TABLE sums ADD COLUMN later bigint; ALTER TABLE keys ADD COLUMN later text;
        UPDATE adriaticum_schema SET version = 999";
    Cluster::shared().sql(name, later);
    ledger.record(entry(key.id()), None).await.unwrap();
    assert!(old.keys().authenticate(&key).await.unwrap().is_some());
    writer.stop();
    assert_eq!(old.keys().list(&Viewer::operator()).await.unwrap().len(), 1);
}

/// One statement looks up the keys of many requests, but each request gets its own result.
#[tokio::test]
async fn a_key_that_cannot_be_read_fails_only_its_own_lookups() {
    let database = TestDatabase::postgres();
    let store = database.open().await;
    let (good, bad, revoked) = (new_key(&store, "a").await, new_key(&store, "b").await, new_key(&store, "c").await);
    let name = database.database.to_string();
    let damage = format!("UPDATE keys SET digest = '\\x00' WHERE id = '{}'", bad.id());
    Cluster::shared().sql(name.rsplit_once('/').unwrap().1, &damage);
    assert!(store.keys().revoke(&Viewer::operator(), revoked.id()).await.unwrap().is_some());
    let lookups = (0..60).map(|number| store.keys().authenticate([&good, &bad, &revoked][number % 3]));
    for (number, found) in futures_util::future::join_all(lookups).await.into_iter().enumerate() {
        match number % 3 {
            0 => assert_eq!(found.unwrap().unwrap().key(), good.id()),
            1 => assert!(found.is_err()),
            _ => assert!(found.unwrap().is_none()),
        }
    }
}
