//! Key search: by text and state, in each order, and only a person's own keys.

use std::time::Duration;

use chat::{KeyId, KeyName};
use store::{KeyOrder, KeySearch, KeyState, Limit, LimitKind, NewKey, Role, Scope, Store, Viewer};

use crate::accounts::Fixture;
use crate::database::TestDatabase;
use crate::on_each_backend;

on_each_backend!(keys_are_found_by_text_and_state_in_each_order, people_find_only_their_own_keys);

async fn create(store: &Store, viewer: &Viewer, name: &str, days: Option<u32>) -> KeyId {
    let expires_at = days.map(|days| store.now() + Duration::from_secs(86_400) * days);
    let new = NewKey { name: KeyName::parse(name).unwrap(), completions: true, expires_at, project: None };
    store.keys().create(viewer, new, u64::MAX).await.unwrap().id()
}

/// The names of the keys that are found.
async fn found(
    store: &Store,
    viewer: &Viewer,
    search: KeySearch<'_>,
    order: KeyOrder,
    descending: bool,
) -> Vec<String> {
    let ids = store.keys().search(viewer, &search, order, descending).await.unwrap();
    store.keys().with_ids(viewer, &ids).await.unwrap().into_iter().map(|key| key.name).collect()
}

async fn keys_are_found_by_text_and_state_in_each_order(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let (store, operator) = (&fixture.store, &Viewer::operator());
    let ada = fixture.viewer("ada@example.com", Role::Developer).await;
    create(store, operator, "beta 100%", Some(90)).await;
    let alpha = create(store, operator, "Alpha_1", None).await;
    create(store, &ada, "gamma", Some(30)).await;
    let revoked = create(store, operator, "Ädelsten", None).await;
    store.keys().revoke(operator, revoked).await.unwrap();
    store.keys().playground_caller(&ada).await.unwrap();

    let active = KeySearch { text: "", state: Some(KeyState::Active) };
    for (order, names) in
        [(KeyOrder::Name, ["Alpha_1", "beta 100%", "gamma"]), (KeyOrder::Expiry, ["gamma", "beta 100%", "Alpha_1"])]
    {
        assert_eq!(found(store, operator, active, order, false).await, names, "{order:?}");
        let backwards: Vec<_> = names.into_iter().rev().collect();
        assert_eq!(found(store, operator, active, order, true).await, backwards, "{order:?}");
    }
    let all = KeySearch::default();
    assert_eq!(found(store, operator, all, KeyOrder::LastUsed, true).await.len(), 4);
    let ids = store.keys().search(operator, &all, KeyOrder::Created, true).await.unwrap();
    let keys = store.keys().with_ids(operator, &ids).await.unwrap();
    assert!(keys.len() == 4 && keys.is_sorted_by_key(|key| std::cmp::Reverse(key.created_at)), "{keys:?}");

    let prefix = format!("ADRIA_{}", alpha.as_str());
    for (text, names) in [
        ("ALPHA", &["Alpha_1"][..]),
        ("lpha_1", &["Alpha_1"]), // not "a_1": a key's id may start with 1
        ("%", &["beta 100%"]),
        ("\\", &[]),
        ("Ädel", &["Ädelsten"]),
        ("ada@EXAMPLE", &["gamma"]),
        (&prefix, &["Alpha_1"]),
        ("'; DROP TABLE keys; --", &[]),
    ] {
        let found = found(store, operator, KeySearch { text, state: None }, KeyOrder::Name, false).await;
        assert_eq!(found, names, "{text}");
    }
    for (state, count) in [(KeyState::Active, 3), (KeyState::Expired, 0), (KeyState::Revoked, 1)] {
        let search = KeySearch { text: "", state: Some(state) };
        assert_eq!(found(store, operator, search, KeyOrder::Name, false).await.len(), count, "{state:?}");
    }
}

async fn people_find_only_their_own_keys(database: TestDatabase) {
    let fixture = Fixture::new(database).await;
    let store = &fixture.store;
    let ada = fixture.viewer("ada@example.com", Role::Developer).await;
    let bob = fixture.viewer("bob@example.com", Role::Developer).await;
    let admin = fixture.viewer("eve@example.com", Role::Admin).await;
    let adas = create(store, &ada, "Ada's", None).await;
    let limit = Limit { scope: Scope::Key(adas), kind: LimitKind::ALL[0], amount: 1 };
    assert!(store.limits().set(admin.admin().unwrap(), limit).await.unwrap());
    for (viewer, count) in [(&ada, 1), (&bob, 0), (&admin, 1)] {
        let ids = store.keys().search(viewer, &KeySearch::default(), KeyOrder::Created, false).await.unwrap();
        assert_eq!(ids.len(), count);
        assert_eq!(store.keys().with_ids(viewer, &[adas]).await.unwrap().len(), count);
        let limits = store.limits().list(viewer).await.unwrap();
        assert_eq!(limits.iter().map(|used| used.name.as_deref()).collect::<Vec<_>>(), vec![Some("Ada's"); count]);
    }
    assert_eq!(store.keys().with_ids(&ada, &[]).await.unwrap(), []);
}
