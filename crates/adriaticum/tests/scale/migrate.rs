//! `adriaticum migrate` copies a SQLite database to PostgreSQL.

use testbed::{Behaviour, Cluster, FakeRuntime, Service};

use crate::ADRIATICUM;

#[test]
fn everything_moves_from_sqlite_to_postgresql() {
    let (runtime, database) = (FakeRuntime::start(Behaviour::Echo), Cluster::shared().create_database());
    let mut service = ADRIATICUM.service_with(&[&runtime]).start();
    let (key, revoked) = (service.key(), service.key_with("revoked", &["--expires", "30d"]));
    let id = revoked.strip_prefix("adria_").unwrap().split('_').next().unwrap();
    service.run_ok(&["keys", "revoke", id]);
    (0..20).for_each(|_| drop(service.chat(&key, "Hello!").completion()));
    assert_eq!(service.chat(&revoked, "Hello!").status, 401);
    service.run_ok(&["accounts", "set-up"]);
    let file = service.data().join("adriaticum.db");

    // First a trial while the service runs, then again after it has stopped.
    let copied = service.run_ok(&["migrate", "--to", &database]);
    assert!(copied.contains("both agree") && copied.contains("once more"), "{copied}");
    service.chat(&key, "And hello again!").completion();
    service.signal(rustix::process::Signal::TERM);
    assert!(service.wait_for_exit().success());
    let commands: [&[&str]; 4] = [
        &["usage", "--json", "--since", "30d"],
        &["usage", "--requests", "--json", "--limit", "1000"],
        &["keys", "list", "--json"],
        &["accounts", "list", "--json"],
    ];
    let shown = |service: &Service| commands.map(|command| without_clock(&service.run_ok(command)));
    let before = shown(&service);
    service.run_ok(&["migrate", "--to", &database]);

    service.set("database_url", &database);
    assert_eq!(shown(&service), before);
    service.start_again();
    service.chat(&key, "Hello from PostgreSQL!").completion();
    assert_eq!(service.chat(&revoked, "Hello!").status, 401);
    assert_eq!(service.rows().len(), 22);
    service.run_ok(&["accounts", "set-up"]);

    // A database that is in use is not overwritten.
    let again = service.run(&["migrate", "--from", file.to_str().unwrap(), "--to", &database]);
    assert!(again.code == Some(1) && again.stderr.contains("Nothing was changed"), "{again:?}");
    assert_eq!(service.rows().len(), 22);
    let nothing = service.run(&["migrate", "--from", "nowhere.db", "--to", &database]);
    assert!(nothing.code == Some(1) && nothing.stderr.contains("nothing to copy"), "{nothing:?}");
}

/// The first copy is unused when the second one begins, but a transaction on it is open. A commit while the second one
/// waits must be kept.
#[test]
fn a_key_that_is_committed_while_a_second_copy_begins_is_not_lost() {
    let (cluster, source) = (Cluster::shared(), ADRIATICUM.install());
    let target = cluster.create_database();
    source.key();
    source.run_ok(&["migrate", "--to", &target]);
    let mut other = cluster.session(&target);
    other.run("BEGIN");
    other.run(
        "INSERT INTO keys (id, digest, name, completions, created_at, playground)
         VALUES ('000000000001', '', 'committed meanwhile', true, 0, false)",
    );
    let again = std::thread::scope(|scope| {
        let again = scope.spawn(|| source.run(&["migrate", "--to", &target]));
        cluster.wait_for_blocked(&target);
        other.run("COMMIT");
        again.join().unwrap()
    });
    let names = cluster.sql(&target, "SELECT name FROM keys ORDER BY id");
    assert!(names.contains("committed meanwhile"), "lost, and yet: {}", again.stdout);
    assert!(again.code == Some(1) && again.stderr.contains("has been used"), "{again:?}");
}

/// Removes the time of a report.
fn without_clock(report: &str) -> String {
    report.lines().filter(|line| !line.contains("\"until\"")).collect::<Vec<_>>().join("\n")
}
