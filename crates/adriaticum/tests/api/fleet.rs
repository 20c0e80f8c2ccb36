//! Many runtimes: members that join and leave while requests are in flight, that are slow, hang or are saturated, and
//! that need a key.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use testbed::{Behaviour, EndOnDrop, FakeRuntime, Request, TIMEOUT, all_at_once, chat_body, unreachable_url, wait_for};

use crate::ADRIATICUM;

fn urls(runtimes: &[&FakeRuntime]) -> String {
    let urls: Vec<_> = runtimes.iter().map(|runtime| format!("{:?}", runtime.url())).collect();
    format!("runtime.urls = [{}]\n", urls.join(", "))
}

/// A URL with a key in it.
fn keyed(runtime: &FakeRuntime, key: &str) -> String {
    runtime.url().replace("http://", &format!("http://{key}@"))
}

#[test]
fn members_join_and_leave_without_a_failed_request() {
    let [old, kept, new] = [0, 1, 2].map(|_| FakeRuntime::start(Behaviour::Echo));
    let service = ADRIATICUM.service_from_file(&urls(&[&old, &kept])).start();
    let key = service.key();
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _stop = EndOnDrop(&stop);
        for thread in 0..4 {
            let (service, key, stop, sent) = (&service, &key, &stop, &sent);
            scope.spawn(move || {
                let mut connection = service.connect();
                while !stop.load(Ordering::Relaxed) {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    let question = chat_body(&format!("thread {thread}, question {number}"));
                    connection.send(Request::chat(key, question).bytes()).response().completion();
                }
            });
        }
        old.wait_for_requests(10);
        service.configure(&urls(&[&kept, &new]));
        let log = service.reload();
        assert!(log.contains("runtime.urls") && !log.contains("restart"), "{log}");
        new.wait_for_requests(10);
        // Removed members may still get requests that were in flight, but no others.
        let before = (old.requests().len(), sent.load(Ordering::Relaxed));
        wait_for("many more requests", || (sent.load(Ordering::Relaxed) > before.1 + 100).then_some(()));
        assert!(old.requests().len() <= before.0 + 4);
        // And back again.
        service.configure(&urls(&[&old]));
        service.reload();
        old.wait_for_requests(before.0 + 20);
    });
}

#[test]
fn a_removed_member_finishes_its_requests_in_flight() {
    let (leaving, staying) = (FakeRuntime::start(Behaviour::EchoWhenReleased), FakeRuntime::start(Behaviour::Echo));
    let service = ADRIATICUM.service_from_file(&urls(&[&leaving])).start();
    let key = service.key();
    let mut waiting = service.connect();
    waiting.send(Request::chat(&key, chat_body("hello")).bytes());
    leaving.wait_for_requests(1);
    service.configure(&urls(&[&staying]));
    service.reload();
    (0..10).for_each(|number| drop(service.chat(&key, &format!("question {number}")).completion()));
    assert_eq!((leaving.requests().len(), staying.requests().len()), (1, 10));
    leaving.release();
    waiting.response().completion();
}

#[test]
fn a_wrong_configuration_changes_nothing() {
    let (runtime, other) = (FakeRuntime::start(Behaviour::Echo), FakeRuntime::start(Behaviour::Echo));
    let service = ADRIATICUM.service_from_file(&urls(&[&runtime])).start();
    let key = service.key();
    for wrong in [
        "runtime.urls = [\"ftp://Quagga@nowhere/v1\"]\n".to_owned(),
        format!("{}runtime.key = \"Quagga", urls(&[&other])),
        format!("{}runtime.kee = \"Quagga\"\n", urls(&[&other])),
        format!("{}api.max_requests = 0\n", urls(&[&other])),
    ] {
        service.configure(&wrong);
        let log = service.reload();
        assert!(log.contains("nothing changes") && log.contains("ERROR"), "{wrong}\n{log}");
        assert!(!log.contains("Quagga"), "{log}");
        service.chat(&key, "hello").completion();
    }
    assert_eq!(other.requests().len(), 0);
}

#[test]
fn settings_that_need_a_restart_are_reported() {
    let (runtime, other) = (FakeRuntime::start(Behaviour::Echo), FakeRuntime::start(Behaviour::Echo));
    let service = ADRIATICUM.service_from_file(&urls(&[&runtime])).start();
    let key = service.key();
    service.configure(&format!("{}api.max_requests = 7\nlog = \"debug\"\n", urls(&[&other])));
    let lines = service.reload();
    let lines =
        format!("{lines}{}", wait_for("the warning", || Some(service.log()).filter(|log| log.contains("restart"))));
    assert!(lines.contains("api.max_requests, log"), "{lines}");
    service.chat(&key, "hello").completion();
    assert_eq!((runtime.requests().len(), other.requests().len()), (0, 1), "other settings are applied");

    // Switching between remote runtimes and the embedded one needs a restart.
    service.configure("");
    service.reload();
    wait_for("the warning", || service.log().contains(r#""settings":"runtime.urls""#).then_some(()));
    service.chat(&key, "hello").completion();
    let none = ADRIATICUM.service_from_file("").start();
    none.configure(&urls(&[&runtime]));
    none.reload();
    wait_for("the warning", || none.log().contains(r#""settings":"runtime.urls""#).then_some(()));
    none.chat(&none.key(), "hello").expect_error("service_unavailable");
}

#[test]
fn each_runtime_gets_its_own_key_and_no_key_is_disclosed() {
    let (own, common) = (FakeRuntime::start(Behaviour::Echo), FakeRuntime::start(Behaviour::Echo));
    let file = |own_key: &str, common_key: &str| {
        format!("runtime.urls = [{:?}, {:?}]\nruntime.key = {common_key:?}\n", keyed(&own, own_key), common.url())
    };
    let service = ADRIATICUM.service_from_file(&file(":Quagga-own", "Quagga-common")).start();
    let key = service.key();
    let count = |runtime: &FakeRuntime, secret: &str| {
        let header = format!("authorization: bearer {secret}\r\n").to_ascii_lowercase();
        runtime.heads().iter().filter(|head| head.to_ascii_lowercase().contains(&header)).count()
    };
    let mut number = 0;
    let mut ask_both = || {
        let before = (own.requests().len(), common.requests().len());
        while own.requests().len() == before.0 || common.requests().len() == before.1 {
            number += 1;
            service.chat(&key, &format!("question {number}")).completion();
        }
    };
    ask_both();
    assert_eq!(count(&own, "Quagga-own"), own.heads().len(), "health checks, too: {:?}", own.heads());
    assert_eq!(count(&common, "Quagga-common"), common.heads().len(), "{:?}", common.heads());
    assert!(
        own.heads()
            .iter()
            .all(|head| !head.to_ascii_lowercase().replace("authorization: bearer quagga", "").contains("quagga"))
    );

    // Members that stay use changed keys.
    service.configure(&file("Quagga-new", "Quagga-other"));
    service.reload();
    ask_both();
    assert!(count(&own, "Quagga-new") > 0 && count(&common, "Quagga-other") > 0);

    own.set_behaviour(Behaviour::Respond(401, "{}".into()));
    common.set_behaviour(Behaviour::Respond(401, "{}".into()));
    let refused = service.chat(&key, "hello");
    let seen = format!("{}{}{refused:?}", service.log(), service.banner());
    let printed = [["config"].as_slice(), &["check"]].map(|command| format!("{:?}", service.run(command)));
    assert!(!format!("{seen}{printed:?}").contains("Quagga"), "{seen}{printed:?}");
    assert!(printed[0].contains("***"), "{printed:?}");
}

#[test]
fn an_invalid_runtime_key_is_refused_without_being_printed() {
    let installation = ADRIATICUM.install();
    for setting in ["runtime.key=Quag ga", "runtime.urls=http://Quag%20ga@a/v1", "runtime.urls=http://Qua:gga@a/v1"] {
        let output = installation.run(&["--set", setting, "config"]);
        assert_ne!(output.code, Some(0), "{output:?}");
        assert!(output.stderr.contains("`runtime.") && !output.stderr.contains("Qua"), "{output:?}");
    }
}

/// Status, code and `Retry-After` of a response, given how the runtimes behave.
fn refusal(replies: &[Behaviour]) -> (u16, String, Option<String>) {
    let runtimes: Vec<_> = replies.iter().map(|reply| FakeRuntime::start(reply.clone())).collect();
    let service = ADRIATICUM.service_with(&runtimes.iter().collect::<Vec<_>>()).start();
    let response = service.chat(&service.key(), "hello");
    let refused = response.error();
    (refused.status, refused.code, response.header("retry-after").map(str::to_owned))
}

#[test]
fn saturation_is_passed_on_to_callers() {
    let later = |status, seconds| Behaviour::RespondRetryAfter(status, "{}".into(), seconds);
    let now = |status| Behaviour::Respond(status, "{}".into());
    let engine =
        |seconds| Behaviour::RespondRetryAfter(503, r#"{"error":{"type":"no_room","message":"full"}}"#.into(), seconds);
    let (inference, unavailable) = ((502, "inference_error"), (503, "service_unavailable"));
    for (replies, (status, code), retry_after) in [
        (vec![later(429, 7)], inference, Some("7")),
        (vec![later(503, 7)], inference, Some("7")),
        (vec![now(429)], inference, Some("1")),
        (vec![later(429, 0)], inference, Some("1")),
        (vec![later(429, 9999)], inference, Some("60")),
        (vec![later(429, 7), later(503, 3)], inference, Some("3")),
        (vec![later(429, 7), now(503)], inference, None),
        (vec![later(429, 7), Behaviour::Close], inference, None),
        (vec![now(503)], inference, None),
        (vec![engine(4)], unavailable, Some("4")),
        (vec![engine(4), engine(2)], unavailable, Some("2")),
        (vec![engine(4), later(429, 3)], unavailable, Some("3")),
    ] {
        let expected = (status, code.to_owned(), retry_after.map(str::to_owned));
        assert_eq!(refusal(&replies), expected, "{replies:?}");
    }
}

#[test]
fn a_saturated_runtime_is_avoided_for_its_retry_after() {
    let (full, other) =
        (FakeRuntime::start(Behaviour::RespondRetryAfter(429, "{}".into(), 60)), FakeRuntime::start(Behaviour::Echo));
    let service = ADRIATICUM.service_with(&[&full, &other]).start();
    let key = service.key();
    for number in 0..60 {
        service.chat(&key, &format!("question {number}")).completion();
    }
    assert_eq!((full.requests().len(), other.requests().len()), (1, 60));
}

#[test]
fn the_only_runtime_serves_everyone_as_soon_as_it_recovers() {
    let runtime = FakeRuntime::start(Behaviour::Respond(500, "{}".into()));
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    (0..4).for_each(|_| drop(service.chat(&key, "hello").expect_error("inference_error")));
    runtime.set_behaviour(Behaviour::EchoWhenReleased);
    // After a passed health check all requests are served immediately, not only a first probe.
    let checks = || runtime.heads().iter().filter(|head| head.starts_with("GET ")).count();
    let before = checks();
    wait_for("a health check and the next", || (checks() >= before + 2).then_some(()));
    let mut waiting: Vec<_> = (0..8)
        .map(|sent| {
            let mut connection = service.connect();
            connection.send(Request::chat(&key, chat_body("hello")).bytes());
            runtime.wait_for_requests(4 + sent + 1);
            connection
        })
        .collect();
    runtime.release();
    waiting.iter_mut().for_each(|connection| drop(connection.response().completion()));
}

#[test]
fn a_slow_runtime_gets_a_small_share_until_it_is_quick_again() {
    let runtimes = [0, 1, 2].map(|_| FakeRuntime::start(Behaviour::Echo));
    let [weak, ..] = &runtimes;
    let service = ADRIATICUM.service_with(&runtimes.each_ref()).start();
    let key = service.key();
    let mut connection = service.connect();
    let mut number = 0;
    let mut share_of = |requests: usize| {
        let before = weak.requests().len();
        for _ in 0..requests {
            number += 1;
            connection
                .send(Request::chat(&key, chat_body(&format!("question {number}"))).bytes())
                .response()
                .completion();
        }
        weak.requests().len() - before
    };
    share_of(60);
    weak.set_behaviour(Behaviour::EchoAfter(Duration::from_millis(700)));
    share_of(60);
    let slow = share_of(120);
    assert!(slow <= 20, "40 of 120 would be its share; it got {slow}");

    weak.set_behaviour(Behaviour::Echo);
    wait_for("the share of a runtime that is quick again", || (share_of(120) >= 25).then_some(()));
}

/// Before requests were moved, those at a runtime that hangs waited for `runtime.timeout` and got 502.
#[test]
fn requests_that_wait_at_a_hanging_runtime_are_completed_by_others() {
    requests_leave_a_runtime_that_begins_to(&Behaviour::Hang);
}

/// `100 Continue` once counted as the beginning of a response, so that such requests were never moved.
#[test]
fn an_interim_response_does_not_hold_a_request() {
    requests_leave_a_runtime_that_begins_to(&Behaviour::InterimThenHang);
}

fn requests_leave_a_runtime_that_begins_to(hang: &Behaviour) {
    let runtimes = [0, 1, 2].map(|_| FakeRuntime::start(Behaviour::Echo));
    let [hung, ..] = &runtimes;
    let service = ADRIATICUM.service_with(&runtimes.each_ref()).set("runtime.timeout", "9m").start();
    let key = service.key();
    let ask = |number: &usize| service.chat(&key, &format!("question {number}"));
    (0..60).for_each(|number| drop(ask(&number).completion()));
    let before = hung.requests().len();
    assert!(before > 5, "{before}");

    hung.set_behaviour(hang.clone());
    let responses = all_at_once(&(60..90).collect::<Vec<usize>>(), ask);
    responses.iter().for_each(|response| drop(response.completion()));
    let asked = hung.requests().len() - before;
    let metric = format!("adriaticum_runtime_requests_moved_total{{runtime=\"{}\"}}", hung.url());
    let metrics = service.get_ops("/metrics").1;
    let moved = metrics.lines().find_map(|line| line.strip_prefix(&metric)).unwrap().trim().parse::<f64>().unwrap();
    assert!(asked > 0 && moved == asked as f64, "{asked} were sent there, {moved} were moved");
    hung.wait_for_disconnects(asked);
    let rows = service.rows();
    let ids: HashSet<_> = rows.iter().map(|row| row["request_id"].as_str().unwrap()).collect();
    assert!(rows.len() == 90 && ids.len() == 90 && rows.iter().all(|row| row["status"] == 200), "{}", rows.len());
    let lines = service.log().matches("requests that wait for a runtime are moved").count();
    assert!((1..=3).contains(&lines), "{lines} lines about {asked} requests");

    // The runtime is tried again soon.
    hung.set_behaviour(Behaviour::Echo);
    let before = hung.requests().len();
    let mut number = 100;
    wait_for("the share of a runtime that responds again", || {
        number += 1;
        ask(&number).completion();
        (hung.requests().len() >= before + 5).then_some(())
    });
}

/// Before the first completion, the usual duration is unknown.
#[test]
fn requests_leave_a_runtime_that_fails_its_health_checks() {
    let runtimes = [0, 1].map(|_| FakeRuntime::start(Behaviour::Hang));
    let service = ADRIATICUM.service_with(&runtimes.each_ref()).set("runtime.timeout", "9m").start();
    let mut caller = service.connect().with_timeout(TIMEOUT * 3);
    caller.send(Request::chat(&service.key(), chat_body("hello")).bytes());
    let sick =
        wait_for("the request at a runtime", || runtimes.iter().position(|runtime| !runtime.requests().is_empty()));
    runtimes[1 - sick].set_behaviour(Behaviour::Echo);
    runtimes[sick].set_health_behaviour(Behaviour::Hang);
    caller.response().completion();
    assert_eq!((runtimes[sick].requests().len(), runtimes[1 - sick].requests().len()), (1, 1));
}

#[test]
fn a_hanging_runtime_is_avoided_long_before_the_timeout() {
    let runtimes = [0, 1, 2].map(|_| FakeRuntime::start(Behaviour::Echo));
    let [hung, ..] = &runtimes;
    let service = ADRIATICUM.service_with(&runtimes.each_ref()).set("runtime.timeout", "9m").start();
    let key = service.key();
    let mut number = 0;
    let mut ask = |count: usize| {
        let before = hung.requests().len();
        for _ in 0..count {
            number += 1;
            service.chat(&key, &format!("question {number}")).completion();
        }
        hung.requests().len() - before
    };
    ask(60);
    hung.set_behaviour(Behaviour::Hang);
    while ask(1) == 0 {}
    // The request was moved, so no waiting request reveals the fault, and the runtime passes its health checks.
    let tried = ask(100);
    assert!(tried <= 10, "33 of 100 would be its share; it got {tried}");
}

#[test]
fn a_name_of_this_machine_is_one_runtime() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let url = runtime.url().replace("127.0.0.1", "localhost");
    let service = ADRIATICUM.service().set("runtime.urls", &url).start();
    assert_eq!(service.banner().matches("  Runtime ").count(), 1);
    assert!(service.banner().contains(&format!("{url}  (model scripted)")), "{}", service.banner());
    service.chat(&service.key(), "hello").completion();
    let host = url.trim_start_matches("http://").trim_end_matches("/v1");
    assert!(runtime.heads().iter().all(|head| head.contains(&format!("host: {host}\r\n"))), "{:?}", runtime.heads());
}

#[test]
fn an_unreachable_member_may_join() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_from_file(&urls(&[&runtime])).start();
    let key = service.key();
    service.configure(&format!("runtime.urls = [{:?}, {:?}]\n", runtime.url(), unreachable_url()));
    let log = service.reload();
    assert!(log.contains("joins the pool"), "{log}");
    for number in 0..30 {
        service.chat(&key, &format!("question {number}")).completion();
    }
}
