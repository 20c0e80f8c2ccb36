//! Limits, also after a failover.

use chat::{ApiKey, RequestId};
use store::{Database, Limit, LimitKind, Permit, Refusal, ReserveError, Scope, Store, Viewer};
use testbed::Cluster;

use crate::database::{TestDatabase, entry, new_key};
use crate::on_each_backend;

on_each_backend!(limits_lost_in_a_failover_no_longer_apply, a_reservation_ends_with_its_row);

async fn reserve(store: &Store, key: &ApiKey) -> Result<Option<Permit>, ReserveError> {
    let caller = store.keys().authenticate(key).await.unwrap().unwrap();
    store.limits().reserve(&caller, RequestId::now(), 10).await
}

async fn set(store: &Store, key: &ApiKey, kind: LimitKind, amount: u64) {
    let limit = Limit { scope: Scope::Key(key.id()), kind, amount };
    assert!(store.limits().set(Viewer::operator().admin().unwrap(), limit).await.unwrap());
}

async fn limits_lost_in_a_failover_no_longer_apply(database: TestDatabase) {
    let store = database.open().await;
    let key = new_key(&store, "k").await;
    set(&store, &key, LimitKind::RequestsPerMinute, 0).await;
    assert!(matches!(reserve(&store, &key).await, Err(ReserveError::Refused(Refusal::Limit(_)))));
    // The standby that takes over has not received the change.
    let lose_change = "DELETE FROM limits; UPDATE limits_version SET version = 0";
    match &database.database {
        Database::Sqlite(path) => rusqlite::Connection::open(path).unwrap().execute_batch(lose_change).unwrap(),
        Database::Postgres(_) => drop(Cluster::shared().sql(database.url(), lose_change)),
    }
    assert!(reserve(&store, &key).await.unwrap().is_none());
    set(&store, &key, LimitKind::RequestsInFlight, 0).await;
    assert!(reserve(&store, &key).await.is_err());
}

async fn a_reservation_ends_with_its_row(database: TestDatabase) {
    let store = database.open().await;
    let (ledger, writer) = store.start_ledger(std::time::Duration::from_secs(86_400)).unwrap();
    let key = new_key(&store, "k").await;
    set(&store, &key, LimitKind::RequestsInFlight, 1).await;
    for _ in 0..20 {
        let permit = reserve(&store, &key).await.unwrap();
        assert!(permit.is_some() && reserve(&store, &key).await.is_err(), "only one in flight");
        ledger.record(entry(key.id()), permit).await.unwrap();
    }
    drop(reserve(&store, &key).await.unwrap()); // a request without a row
    let mut again = reserve(&store, &key).await;
    while again.is_err() {
        tokio::task::yield_now().await;
        again = reserve(&store, &key).await;
    }
    drop(again);
    writer.stop();
}
