//! Outages of the PostgreSQL server: rows that cannot be recorded are errors, recorded rows exist once, and the store
//! recovers without a restart.

use std::time::{Duration, Instant};

use store::{Ledger, RecordError, RequestQuery, Store, Viewer};
use testbed::Cluster;

use crate::database::{TestDatabase, entry, new_key};

const RETENTION: Duration = Duration::from_secs(86_400);
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_connection_closed_between_two_rows_loses_nothing() {
    let database = TestDatabase::postgres();
    let store = database.open().await;
    let key = new_key(&store, "k").await;
    let (ledger, writer) = store.start_ledger(RETENTION).unwrap();
    for _ in 0..5 {
        ledger.record(entry(key.id()), None).await.unwrap();
        assert!(store.keys().authenticate(&key).await.unwrap().is_some());
        Cluster::shared().sql(
            "postgres",
            &format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{}'",
                database.database.to_string().rsplit_once('/').unwrap().1
            ),
        );
    }
    assert!(ledger.is_healthy());
    assert_eq!(rows(&store).await, 5);
    writer.stop();
}

#[tokio::test]
async fn a_stopped_server_makes_the_ledger_unhealthy_until_it_is_back() {
    let cluster = Cluster::start(&[]);
    let database = TestDatabase::on(&cluster);
    let store = database.open().await;
    let key = new_key(&store, "k").await;
    let (ledger, writer) = store.start_ledger(RETENTION).unwrap();
    ledger.record(entry(key.id()), None).await.unwrap();
    let mut recorded = 1;
    for mode in ["fast", "immediate"] {
        cluster.stop(mode);
        assert_eq!(ledger.record(entry(key.id()), None).await.unwrap_err(), RecordError::CommitFailed, "{mode}");
        assert!(!ledger.is_healthy(), "{mode}");
        assert!(store.keys().authenticate(&key).await.is_err(), "{mode}");
        cluster.start_again();
        wait_until_healthy(&ledger).await;
        assert!(store.keys().authenticate(&key).await.unwrap().is_some(), "{mode}");
        ledger.record(entry(key.id()), None).await.unwrap();
        recorded += 1;
        assert_eq!(rows(&store).await, recorded, "{mode}");
    }
    writer.stop();
}

#[tokio::test]
async fn a_frozen_server_times_out() {
    let cluster = Cluster::start(&[]);
    let database = TestDatabase::on(&cluster);
    let store = database.open().await;
    let key = new_key(&store, "k").await;
    let (ledger, writer) = store.start_ledger(RETENTION).unwrap();
    ledger.record(entry(key.id()), None).await.unwrap();
    cluster.freeze(true);
    let began = Instant::now();
    let (refused, unknown) = tokio::join!(ledger.record(entry(key.id()), None), store.keys().authenticate(&key));
    cluster.freeze(false);
    assert!(refused.is_err() && unknown.is_err());
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    wait_until_healthy(&ledger).await;
    ledger.record(entry(key.id()), None).await.unwrap();
    assert!(store.keys().authenticate(&key).await.unwrap().is_some());
    writer.stop();
}

/// After a failover, open connections may lead to a server that is now read-only.
#[tokio::test]
async fn a_read_only_server_makes_the_ledger_unhealthy() {
    let cluster = Cluster::start(&[]);
    let database = TestDatabase::on(&cluster);
    let store = database.open().await;
    let key = new_key(&store, "k").await;
    let (ledger, writer) = store.start_ledger(RETENTION).unwrap();
    cluster.set("default_transaction_read_only", "on");
    let mut refused = false;
    let began = Instant::now();
    while !refused && began.elapsed() < RECOVERY_TIMEOUT {
        refused = ledger.record(entry(key.id()), None).await.is_err();
    }
    assert!(refused && !ledger.is_healthy());
    cluster.set("default_transaction_read_only", "off");
    wait_until_healthy(&ledger).await;
    ledger.record(entry(key.id()), None).await.unwrap();
    writer.stop();
}

#[tokio::test]
async fn an_unreachable_server_is_a_clear_error_at_start() {
    let began = Instant::now();
    let missing = TestDatabase::at("postgres://ada:secret@127.0.0.1:1/nothing");
    let refusal = Store::open(&missing.database).await.err().unwrap().to_string();
    assert!(refusal.contains("refused") && !refusal.contains("secret"), "{refusal}");
    let missing = Cluster::shared().url("missing");
    let refusal = Store::open(&TestDatabase::at(&missing).database).await.err().unwrap().to_string();
    assert!(refusal.contains("\"missing\" does not exist"), "{refusal}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

async fn rows(store: &Store) -> usize {
    let all = RequestQuery { limit: 1000, ..RequestQuery::default() };
    store.usage().requests(&Viewer::operator(), &all).await.unwrap().len()
}

async fn wait_until_healthy(ledger: &Ledger) {
    let began = Instant::now();
    while !ledger.is_healthy() {
        assert!(began.elapsed() < RECOVERY_TIMEOUT, "the ledger does not recover");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
