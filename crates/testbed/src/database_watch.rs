//! The activity of a PostgreSQL server for the clients of one database, by `pg_stat_activity`.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

use crate::Cluster;

/// The name of the test's own connections, which may hold locks.
const HOLDER: &str = "holder";

pub struct DatabaseWatch {
    /// The name of the database.
    name: String,
    client: Client,
}

impl DatabaseWatch {
    /// Watches a database of the shared cluster, given by its URL.
    pub async fn new(url: &str) -> Self {
        let name = url.rsplit_once('/').unwrap().1.to_owned();
        Self { name, client: connect("postgres").await }
    }

    /// A connection of the test, to hold locks with.
    pub async fn connect(&self) -> Client {
        connect(&self.name).await
    }

    /// Whether a client waits for a lock.
    pub async fn somebody_waits(&self) -> bool {
        self.count("state = 'active' AND wait_event_type = 'Lock'").await > 0
    }

    /// Open connections, except the test's.
    pub async fn connections(&self) -> i64 {
        self.count("true").await
    }

    /// Waits at most `limit` until nothing runs and no transaction is open.
    pub async fn assert_nothing_is_left(&self, after: &str, limit: Duration) {
        let began = Instant::now();
        while self.count("state <> 'idle'").await > 0 {
            let waited = began.elapsed();
            assert!(waited < limit, "{waited:?} after {after}, the server still works for a client that has left");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn count(&self, condition: &str) -> i64 {
        let count = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND backend_type = 'client backend'
             AND application_name <> '{HOLDER}' AND {condition}",
            self.name
        );
        self.client.query_one(&count, &[]).await.unwrap().get(0)
    }
}

async fn connect(database: &str) -> Client {
    let url = format!("{}?application_name={HOLDER}", Cluster::shared().url(database));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
