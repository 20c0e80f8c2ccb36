//! A database for one test.

use std::time::Duration;

use chat::{ApiKey, KeyId, KeyName, RequestId, TokenUsage};
use store::{Database, Entry, NewKey, Outcome, PostgresSettings, Store, Timings, Viewer};
use testbed::Cluster;

pub(crate) const OK: Outcome = Outcome { status: 200, code: None };

pub(crate) struct TestDatabase {
    pub(crate) database: Database,
    /// Of a PostgreSQL database; empty for SQLite.
    url: String,
    _folder: Option<tempfile::TempDir>,
}

impl TestDatabase {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { database: Database::Sqlite(folder.path().join("test.db")), url: String::new(), _folder: Some(folder) }
    }

    pub(crate) fn postgres() -> Self {
        Self::at(&Cluster::shared().create_database())
    }

    /// A database on a server that only this test uses.
    pub(crate) fn on(cluster: &Cluster) -> Self {
        Self::at(&cluster.create_database())
    }

    pub(crate) fn at(url: &str) -> Self {
        let settings = PostgresSettings { url: url.parse().unwrap(), connections: 4, timeout: Duration::from_secs(5) };
        Self { database: Database::Postgres(settings), url: url.to_owned(), _folder: None }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Opens it like another process.
    pub(crate) async fn open(&self) -> Store {
        Store::open(&self.database).await.unwrap()
    }
}

pub(crate) async fn new_key(store: &Store, name: &str) -> ApiKey {
    let new = NewKey { name: KeyName::parse(name).unwrap(), completions: true, expires_at: None, project: None };
    store.keys().create(&Viewer::operator(), new, u64::MAX).await.unwrap()
}

pub(crate) fn entry(key: KeyId) -> Entry {
    Entry {
        request_id: RequestId::now(),
        key,
        owner: None,
        project: None,
        outcome: OK,
        usage: TokenUsage { prompt: Some(2), completion: Some(3), total: Some(5) },
        timings: Timings { total: Duration::from_millis(40), ..Timings::default() },
        grounding: None,
        inference: Default::default(),
    }
}
