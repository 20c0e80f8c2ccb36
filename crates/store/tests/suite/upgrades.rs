//! Upgrades of databases of every released version. `tests/schemas` has a folder for each version of the schema, with the
//! schemas of new databases and a replica's statements for a request. A new version also needs such a folder: the first
//! run of the test writes the schemas; the statements of a replica must be added by hand.

use std::fs::{create_dir_all, read_dir, read_to_string, write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chat::Timestamp;
use rusqlite::Connection;
use store::{Database, Period, Step, Store, UsageQuery, Viewer};
use testbed::Cluster;

use crate::database::TestDatabase;

/// Meanwhile replicas of that version serve, and a dump holds locks on all tables.
#[tokio::test(flavor = "multi_thread")]
async fn every_released_schema_is_upgraded_while_its_replicas_serve() {
    let (cluster, new) = (Cluster::shared(), TestDatabase::postgres());
    drop(new.open().await);
    keep(
        &cluster.sql(new.url(), "SELECT version FROM adriaticum_schema"),
        "postgres.sql",
        &cluster.contents(new.url()),
    );
    for version in versions() {
        let database = TestDatabase::postgres();
        cluster.sql(database.url(), &read_to_string(version.join("postgres.sql")).unwrap());
        let mut replicas = cluster.start_script(database.url(), &version.join("replica.sql"));
        replicas.wait_for_runs(100);
        let dump = cluster.start_dump(database.url());
        let upgrade = tokio::spawn({
            let database = database.database.clone();
            async move { Store::open(&database).await }
        });
        replicas.wait_for_runs(500);
        drop(dump);
        let store = upgrade.await.unwrap().unwrap();
        replicas.wait_for_runs(500);
        let longest = replicas.runs().into_iter().max().unwrap();
        assert!(longest < Duration::from_secs(2), "a request waited for {longest:?}");
        drop(replicas);
        cluster.sql(database.url(), "DROP TABLE filler");
        assert_eq!(cluster.schema(database.url()), cluster.schema(new.url()), "{version:?}");
        let query = UsageQuery {
            period: Period::since(Timestamp::default()),
            key: None,
            step: Step::Hour,
            person: None,
            group: None,
        };
        let report = store.usage().report(&Viewer::operator(), &query).await.unwrap().unwrap();
        assert_eq!(cluster.sql(database.url(), "SELECT count(*) FROM requests"), report.totals.requests.to_string());
    }
}

#[tokio::test]
async fn a_file_of_every_released_schema_is_upgraded() {
    let new = TestDatabase::sqlite();
    drop(new.open().await);
    let wanted = schema(&new);
    let version: u32 = file(&new).pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    let contents = format!("{wanted}INSERT INTO limits_version VALUES (1, 0);\nPRAGMA user_version = {version};\n");
    keep(&version.to_string(), "sqlite.sql", &contents);
    for version in versions() {
        let database = TestDatabase::sqlite();
        file(&database).execute_batch(&read_to_string(version.join("sqlite.sql")).unwrap()).unwrap();
        drop(database.open().await);
        assert_eq!(schema(&database), wanted, "{version:?}");
    }
}

fn file(database: &TestDatabase) -> Connection {
    let Database::Sqlite(path) = &database.database else { panic!("a file") };
    Connection::open(path).unwrap()
}

/// The statements that create the tables of a file.
fn schema(database: &TestDatabase) -> String {
    let file = file(database);
    let mut list =
        file.prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'").unwrap();
    let statements = list.query_map([], |row| row.get::<_, String>(0)).unwrap();
    statements.map(|statement| format!("{};\n", statement.unwrap())).collect()
}

fn versions() -> Vec<PathBuf> {
    let mut versions: Vec<_> = read_dir(folder()).unwrap().map(|version| version.unwrap().path()).collect();
    versions.sort();
    versions
}

/// Writes the schema of a new database of the current version, unless it exists.
fn keep(version: &str, name: &str, contents: &str) {
    let version = folder().join(version);
    if !version.join(name).exists() {
        create_dir_all(&version).unwrap();
        write(version.join(name), contents).unwrap();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemas")
}
