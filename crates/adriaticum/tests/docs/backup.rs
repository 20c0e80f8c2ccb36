//! The promises of docs/backup.md: a backup made under load holds every request that was acknowledged before it began, and
//! can be served.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testbed::{Behaviour, Cluster, EndOnDrop, FakeRuntime, Output, Request, Service, chat_body};

use crate::ADRIATICUM;

/// Responses before a backup begins, and while it is made.
const ENOUGH: usize = 100;

/// Runs `done` under load. Returns the ids that were acknowledged before it.
fn acknowledged_before(service: &Service, key: &str, done: impl FnOnce()) -> BTreeSet<String> {
    let request = Request::chat(key, chat_body("hello")).bytes();
    let (acknowledged, over) = (Mutex::new(BTreeSet::new()), AtomicBool::new(false));
    let wait_for =
        |count| ADRIATICUM.wait_for("answers", || (acknowledged.lock().unwrap().len() >= count).then_some(()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = service.connect();
                while !over.load(Ordering::Relaxed) {
                    let response = connection.send(&request).response();
                    acknowledged.lock().unwrap().insert(response.completion().id);
                }
            });
        }
        let _end = EndOnDrop(&over);
        wait_for(ENOUGH);
        let before = acknowledged.lock().unwrap().clone();
        done();
        wait_for(before.len() + ENOUGH); // the load continued meanwhile
        before
    })
}

fn assert_holds(restored: &Service, before: &BTreeSet<String>, key: &str) {
    let rows = restored.rows();
    let ids: BTreeSet<_> = rows.iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), rows.len(), "no row is there twice");
    let lost: Vec<_> = before.difference(&ids).collect();
    assert!(lost.is_empty(), "acknowledged before the backup and not in it: {lost:?}");
    assert_eq!(restored.usage()["requests"], rows.len(), "the sums count the same rows");
    assert!(restored.run(&["check", "--deep"]).stdout.contains("the database is intact"));
    restored.chat(key, "hello").completion();
    assert_eq!(restored.usage()["requests"], rows.len() + 1);
}

#[test]
fn a_copy_of_sqlite_made_under_load_can_be_served() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let before = acknowledged_before(&service, &key, || {
        let printed = service.run_ok(&["backup", "copy.db"]);
        assert!(printed.contains("checked"), "{printed}");
    });
    let restored = service.folder().join("restored");
    std::fs::create_dir(&restored).unwrap();
    std::fs::copy(service.folder().join("copy.db"), restored.join("adriaticum.db")).unwrap();
    let restored = ADRIATICUM.service_with(&[&runtime]).data(restored).start();
    assert_holds(&restored, &before, &key);
}

#[test]
fn a_backup_overwrites_nothing_and_leaves_nothing_behind() {
    use std::os::unix::fs::PermissionsExt;
    let installation = ADRIATICUM.service().start();
    assert_eq!(installation.run(&["backup", "copy.db"]).code, Some(0));
    let copy = installation.folder().join("copy.db");
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600, "no other user may read it");
    let first = std::fs::read(&copy).unwrap();
    installation.key();
    for (to, why) in [("copy.db", "already exists"), ("nowhere/copy.db", "No such file"), (".", "already exists")] {
        let output = installation.run(&["backup", to]);
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains(why), "{output:?}");
    }
    assert_eq!(std::fs::read(&copy).unwrap(), first);
    // Not a database: no file is left that looks like a backup.
    std::fs::write(installation.folder().join("other.db"), "no database at all, but long enough to be taken for one")
        .unwrap();
    let output = installation.run(&["--set", "database_url=sqlite:other.db", "backup", "second.db"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    let left = std::fs::read_dir(installation.folder()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("second")));
}

#[test]
fn a_dump_of_postgres_made_under_load_can_be_served() {
    let cluster = Cluster::shared();
    let (url, new) = (cluster.create_database(), cluster.create_database());
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).set("database_url", &url).start();
    let key = service.key();
    let dump = service.folder().join("adriaticum.dump");
    let run = |program: &str, arguments: &[&str]| {
        let output = Output::from_command(
            Command::new(program).args(arguments).arg(if program == "pg_dump" { "--file" } else { "--" }).arg(&dump),
        );
        assert_eq!(output.code, Some(0), "{output:?}");
    };
    let before = acknowledged_before(&service, &key, || run("pg_dump", &["--format=custom", "--dbname", &url]));
    run("pg_restore", &["--no-owner", "--exit-on-error", "--dbname", &new]);
    let restored = ADRIATICUM.service_with(&[&runtime]).set("database_url", &new).start();
    assert_holds(&restored, &before, &key);
    assert!(service.run(&["backup", "copy.db"]).stderr.contains("pg_dump"), "the error names the right tool");
}
