//! Budgets and rates of concurrent callers on several replicas.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};
use testbed::{Behaviour, Cluster, FakeRuntime, Request, Service, chat_body};

use crate::ADRIATICUM;

const REPLICAS: usize = 3;
const CALLERS: usize = 64;
/// Measured tokens of each completion.
const TOKENS: u64 = 97;
/// The tokens that a request with the content `hello` reserves.
const NEEDED: u64 = 525;

fn replicas(runtime: &FakeRuntime) -> Vec<Service> {
    replicas_on(&Cluster::shared().create_database(), runtime)
}

fn replicas_on(url: &str, runtime: &FakeRuntime) -> Vec<Service> {
    (0..REPLICAS).map(|_| ADRIATICUM.service_with(&[runtime]).set("database_url", url).start()).collect()
}

/// Every caller sends one request after the other until one is refused. Returns the number of completions.
fn race(replicas: &[Service], key: &str, refusal: &str) -> u64 {
    let request = Request::chat(key, chat_body("hello")).bytes();
    let completed = AtomicU64::new(0);
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (replica, request, completed) = (&replicas[caller % replicas.len()], &request, &completed);
            scope.spawn(move || {
                let mut connection = replica.connect();
                loop {
                    let response = connection.send(request).response();
                    if response.status != 200 {
                        response.expect_error(refusal);
                        return;
                    }
                    completed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    completed.into_inner()
}

fn used(replica: &Service, key: &str) -> u64 {
    let listed: Vec<Value> = serde_json::from_str(&replica.run_ok(&["limits", "list", "--json"])).unwrap();
    let limit = listed.iter().find(|limit| limit["id"] == key[6..18]).unwrap();
    limit["used"].as_u64().unwrap()
}

/// `BUDGET_RACES` sets the number of runs.
#[test]
fn a_budget_is_never_overshot() {
    let budget = 10_000;
    let runs = std::env::var("BUDGET_RACES").map_or(10, |runs| runs.parse().unwrap());
    let usage = json!({ "prompt_tokens": 50, "completion_tokens": 47, "total_tokens": TOKENS });
    let runtime = FakeRuntime::start(Behaviour::completion("x", "stop", Some(usage)));
    let mut replicas = replicas(&runtime);
    let mut left = Vec::new();
    for run in 0..runs {
        let key = replicas[0].key();
        replicas[1].run_ok(&["limits", "set", "--key", &key[6..18], "tokens-per-day", &budget.to_string()]);
        let mut spent = race(&replicas, &key, "insufficient_permission") * TOKENS;
        // A restart neither loses spending nor keeps reservations.
        if run % 100 == 0 {
            replicas[2].kill();
            replicas[2].start_again();
        }
        // Requests that were refused because of other reservations may now fit: one at a time.
        while replicas[run % REPLICAS].chat(&key, "hello").status == 200 {
            spent += TOKENS;
        }
        runtime.forget();
        assert_eq!(used(&replicas[2], &key), spent, "the spending is the sum of the completions");
        assert!(spent <= budget, "overshot by {}", spent - budget);
        left.push(budget - spent);
    }
    left.sort_unstable();
    let (least, most) = (left[0], left[left.len() - 1]);
    println!("{runs} races: overshoot 0; {least} to {most} tokens left where a request may need {NEEDED}");
    assert!(most < NEEDED, "{left:?}");
}

#[test]
fn a_rate_holds_for_all_replicas_together() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let replicas = replicas(&runtime);
    for limit in [1, 20, 500] {
        let key = replicas[0].key();
        replicas[0].run_ok(&["limits", "set", "--key", &key[6..18], "requests-per-minute", &limit.to_string()]);
        let completed = race(&replicas, &key, "service_unavailable");
        // A minute's requests immediately, and those that the seconds of the run allow.
        assert!(completed >= limit && completed <= limit + limit / 4, "{completed} of {limit}");
    }
}

#[test]
fn requests_in_flight_are_counted_for_all_replicas_together() {
    let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let replicas = replicas(&runtime);
    let key = replicas[0].key();
    replicas[0].run_ok(&["limits", "set", "--key", &key[6..18], "requests-in-flight", "3"]);
    let request = Request::chat(&key, chat_body("hello")).bytes();
    let mut connections: Vec<_> = replicas.iter().map(Service::connect).collect();
    connections.iter_mut().for_each(|connection| {
        connection.send(&request);
    });
    runtime.wait_for_requests(3);
    for replica in &replicas {
        let message = replica.chat(&key, "hello").expect_error("service_unavailable");
        assert!(message.contains("limit of 3 requests in flight is reached."), "{message}");
    }
    runtime.release();
    connections.iter_mut().for_each(|connection| drop(connection.response().completion()));
    runtime.set_behaviour(Behaviour::Echo);
    // Sequential requests are never refused, on any replica: a slot that one replica releases is free for the next one.
    replicas[0].run_ok(&["limits", "set", "--key", &key[6..18], "requests-in-flight", "1"]);
    for at in 0..12 {
        replicas[at % REPLICAS].chat(&key, "hello").completion();
    }
}

#[test]
fn reservations_of_a_dead_replica_expire() {
    let runtime = FakeRuntime::start(Behaviour::Hang);
    let mut replicas = replicas(&runtime);
    let key = replicas[0].key();
    for (kind, amount) in [("requests-in-flight", "1"), ("requests-per-day", "1"), ("tokens-per-month", "600")] {
        replicas[0].run_ok(&["limits", "set", "--key", &key[6..18], kind, amount]);
    }
    let mut connection = replicas[1].connect();
    connection.send(Request::chat(&key, chat_body("hello")).bytes());
    runtime.wait_for_requests(1);
    replicas[0].chat(&key, "hello").expect_error("insufficient_permission");
    replicas[1].kill();
    runtime.set_behaviour(Behaviour::Echo);
    ADRIATICUM.wait_for("the reservation's end", || (replicas[2].chat(&key, "hello").status == 200).then_some(()));
    replicas[0].chat(&key, "hello").expect_error("insufficient_permission");
}

/// Callers disconnect at any point, also between the decision and its arrival at the replica.
#[test]
fn callers_that_hang_up_leave_no_reservation_behind() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let url = Cluster::shared().create_database();
    let replicas = replicas_on(&url, &runtime);
    let (key, other) = (replicas[0].key(), replicas[0].key());
    replicas[0].run_ok(&["limits", "set", "--everyone", "requests-in-flight", "3"]);
    let request = Request::chat(&key, chat_body("hello")).bytes();
    thread::scope(|scope| {
        for caller in 0..6 {
            let (replica, request) = (&replicas[caller % REPLICAS], &request);
            scope.spawn(move || {
                for attempt in 0..300_u64 {
                    let mut connection = replica.connect();
                    connection.send(request);
                    thread::sleep(std::time::Duration::from_micros(attempt * 37 % 5_000)); // varies the time
                }
            });
        }
    });
    let left = || Cluster::shared().sql(&url, "SELECT count(*) FROM reservations");
    ADRIATICUM.wait_for("the end of all reservations", || (left() == "0").then_some(()));
    replicas.iter().for_each(|replica| drop(replica.chat(&other, "hello").completion()));
}
