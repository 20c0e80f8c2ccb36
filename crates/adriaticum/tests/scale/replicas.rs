//! Starts, stops and crashes of replicas, and their shared state.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testbed::{Behaviour, Cluster, FakeRuntime, Request, Service, chat_body};

use crate::ADRIATICUM;
use crate::load::Load;

fn start(count: usize, runtime: &FakeRuntime) -> Vec<Service> {
    let url = Cluster::shared().create_database();
    (0..count).map(|_| replica(runtime, &url)).collect()
}

fn replica(runtime: &FakeRuntime, url: &str) -> Service {
    ADRIATICUM.service_with(&[runtime]).set("database_url", url).set("api.drain", "1s").start()
}

fn addresses<'a>(replicas: impl IntoIterator<Item = &'a Service>) -> Vec<SocketAddr> {
    replicas.into_iter().map(Service::address).collect()
}

#[test]
fn a_key_revoked_on_one_is_refused_by_the_next_request_on_every_other() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let replicas = start(3, &runtime);
    for revoking in 0..replicas.len() {
        let key = replicas[(revoking + 1) % 3].key();
        let request = Request::chat(&key, chat_body("hello")).bytes();
        let mut connections: Vec<_> = replicas.iter().map(Service::connect).collect();
        connections.iter_mut().for_each(|connection| drop(connection.send(&request).response().completion()));
        replicas[revoking].run_ok(&["keys", "revoke", &key[6..18]]);
        connections.iter_mut().for_each(|connection| {
            connection.send(&request).response().expect_error("invalid_api_key");
        });
    }
}

#[test]
fn a_killed_replica_loses_nothing_that_was_acknowledged() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut replicas = start(3, &runtime);
    let key = replicas[0].key();
    let all = addresses(&replicas);
    let load = Load::during(&all, &key, &chat_body("hello"), |load| {
        for _ in 0..5 {
            load.wait_for_completions(60);
            replicas[2].kill();
            load.wait_for_completions(60);
            replicas[2].start_again();
            load.call_at(&addresses(&replicas));
        }
        load.wait_for_completions(60);
    });
    load.assert_nothing_lost_or_doubled(&replicas[0]);
    let kinds = load.kinds();
    assert_eq!(kinds.len(), 1, "the others respond as before: {kinds:?}");
}

/// A replica that starts creates the partitions of coming days, as every replica does once a minute.
#[test]
fn a_dump_beside_a_new_day_makes_no_request_wait() {
    let (runtime, cluster) = (FakeRuntime::start(Behaviour::Echo), Cluster::shared());
    let url = cluster.create_database();
    let (first, partitions) = (replica(&runtime, &url), "SELECT count(*) FROM pg_tables WHERE tablename ~ '_[0-9]+$'");
    let key = first.key();
    first.chat(&key, "hello").completion();
    ADRIATICUM.wait_for("partitions", || (cluster.sql(&url, partitions) == "6").then_some(()));
    let day = cluster.sql(&url, "SELECT max(substring(tablename FROM '[0-9]+$')) FROM pg_tables");
    cluster.sql(&url, &format!("DROP TABLE requests_{day}, commits_{day}"));
    let dump = cluster.start_dump(&url);
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| replica(&runtime, &url));
        while !second.is_finished() {
            let sent = Instant::now();
            first.chat(&key, "hello").completion();
            assert!(sent.elapsed() < Duration::from_secs(2), "{:?}", sent.elapsed());
        }
        second.join().unwrap()
    });
    second.chat(&key, "hello").completion();
    let log = ADRIATICUM.wait_for("a line that names the dump", || {
        second.log().lines().find(|line| line.contains("pg_dump")).map(str::to_owned)
    });
    assert!(log.contains("creating the partition") && log.contains("COPY"), "{log}");
    drop(dump);
    let _third = replica(&runtime, &url);
    ADRIATICUM.wait_for("partitions", || (cluster.sql(&url, partitions) == "6").then_some(()));
}

#[test]
fn a_rolling_restart_fails_no_request() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut replicas = start(3, &runtime);
    let key = replicas[0].key();
    let load = Load::during(&addresses(&replicas), &key, &chat_body("hello"), |load| {
        for at in 0..replicas.len() {
            load.wait_for_completions(40);
            replicas[at].signal(Signal::TERM);
            // As a load balancer does with a replica that is not ready.
            load.call_at(&addresses(replicas.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, one)| one)));
            assert_eq!(replicas[at].wait_for_exit().code(), Some(0));
            replicas[at].start_again();
            load.call_at(&addresses(&replicas));
        }
        load.wait_for_completions(40);
    });
    let kinds = load.kinds();
    assert_eq!((kinds.len(), load.broken()), (1, 0), "{kinds:?}");
    load.assert_nothing_lost_or_doubled(&replicas[0]);
}
