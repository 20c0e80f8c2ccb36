//! Wrong clocks: no row is deleted, no caller is locked out, and with PostgreSQL no replica's clock counts.

use testbed::{Behaviour, Cluster, FakeRuntime, ShiftedClock, on_postgres};

use crate::ADRIATICUM;

/// The service deletes old rows when it starts, and once a minute.
#[test]
fn a_clock_that_is_far_ahead_for_a_while_deletes_no_row() {
    let (runtime, clock) = (FakeRuntime::start(Behaviour::Echo), ShiftedClock::new(0));
    let mut service = ADRIATICUM.service_with(&[&runtime]).clock(&clock).start();
    let key = service.key();
    let chat = |count| (0..count).for_each(|_| drop(service.chat(&key, "hello").completion()));
    chat(5);
    clock.set_days(200);
    service.kill();
    service.start_again();
    // Deletions of the start are done once the second of these is recorded.
    let chat = |count| (0..count).for_each(|_| drop(service.chat(&key, "hello").completion()));
    chat(2);
    assert_eq!(service.run_ok(&["usage", "--requests", "--json", "--since", "3650d"]).matches("request_id").count(), 7);
    let log = service.log();
    match on_postgres() {
        true => assert!(figure(&service, "adriaticum_clock_ahead_seconds") > 199.0 * 86_400.0),
        false => {
            assert!(log.contains("more than a day apart"), "{log}");
            assert!(figure(&service, "adriaticum_ledger_clock_disagreement_seconds") > 199.0 * 86_400.0);
        }
    }
    assert_eq!(log.matches("deleted rows").count(), 0, "{log}");
    // Restarted while the clock is still wrong: the rows of this service are no evidence.
    service.kill();
    service.start_again();
    (0..2).for_each(|_| drop(service.chat(&key, "hello").completion()));
    clock.set_days(0);
    assert_eq!(service.run_ok(&["usage", "--requests", "--json", "--since", "3650d"]).matches("request_id").count(), 9);
}

/// A day of 1970 that has a partition, and one that has none.
#[test]
fn deletions_are_logged() {
    if !on_postgres() {
        return; // the test cannot put such rows into a SQLite file
    }
    let database = Cluster::shared().create_database();
    let mut service = ADRIATICUM.service().set("database_url", &database).start();
    // Without a stored time, the rows of 1970 would be the only evidence of the time.
    let stored = || (Cluster::shared().sql(&database, "SELECT count(*) FROM retention_clock") == "1").then_some(());
    ADRIATICUM.wait_for("the ledger's time", stored);
    service.kill();
    Cluster::shared().sql(
        &database,
        "CREATE TABLE requests_0 PARTITION OF requests
             FOR VALUES FROM ('00000000-0000-7000-8000-000000000000') TO ('00000526-5c00-7000-8000-000000000000');
         INSERT INTO requests (id, key_id, status, total_us, commit_id)
             VALUES ('00000000-0001-7000-8000-000000000000', '', 200, 1, 1),
                 ('00000000-0002-7000-8000-000000000000', '', 200, 1, 1),
                 ('00000600-0000-7000-8000-000000000000', '', 200, 1, 1)",
    );
    service.start_again();
    let log = ADRIATICUM.wait_for("the log line", || Some(service.log()).filter(|log| log.contains("deleted rows")));
    let line = log.lines().find(|line| line.contains("deleted rows")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((line["rows"].as_u64(), &line["from"]), (Some(3), &"1970-01-01T00:00:00Z".into()), "{line}");
    assert!(line["to"].as_str().unwrap().starts_with("1970-01-02T"), "{line}");
}

/// A row of a past year would be deleted as old. The service reads the clock when it starts, and once a minute.
#[test]
fn a_clock_that_is_set_back_for_a_while_loses_no_row() {
    let (runtime, clock) = (FakeRuntime::start(Behaviour::Echo), ShiftedClock::new(0));
    let mut service = ADRIATICUM.service_with(&[&runtime]).clock(&clock).start();
    let key = service.key();
    drop(service.chat(&key, "hello").completion());
    clock.set_days(-200);
    (0..3).for_each(|_| drop(service.chat(&key, "hello").completion()));
    service.kill();
    service.start_again();
    (0..3).for_each(|_| drop(service.chat(&key, "hello").completion()));
    clock.set_days(0);
    service.kill();
    service.start_again();
    (0..2).for_each(|_| drop(service.chat(&key, "hello").completion()));
    assert_eq!(service.rows().len(), 9, "all within the last days");
}

/// Every replica's rows have the server's time. A row of another year would be deleted immediately.
#[test]
fn with_postgresql_the_clock_of_a_replica_does_not_count() {
    if !on_postgres() {
        return;
    }
    let (runtime, ahead, behind) =
        (FakeRuntime::start(Behaviour::Echo), ShiftedClock::new(200), ShiftedClock::new(-200));
    let right = ADRIATICUM.service_with(&[&runtime]).start();
    let key = right.key_with("for a month", &["--expires", "30d"]);
    let wrong =
        [&ahead, &behind].map(|clock| ADRIATICUM.service_with(&[&runtime]).replica_of(&right).clock(clock).start());
    wrong.iter().chain([&right]).for_each(|replica| drop(replica.chat(&key, "hello").completion()));
    let restarted = ADRIATICUM.service_with(&[&runtime]).replica_of(&right).start();
    (0..2).for_each(|_| drop(restarted.chat(&key, "hello").completion()));
    assert_eq!(right.rows().len(), 5, "all within the last days, and none deleted");
    let expiring = wrong[1].key_with("made by a clock that is behind", &["--expires", "1d"]);
    right.chat(&expiring, "hello").completion();
}

fn figure(service: &testbed::Service, name: &str) -> f64 {
    let (_, metrics) = service.get_ops("/metrics");
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {metrics}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}
