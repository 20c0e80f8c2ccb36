//! The engine is killed, the service is killed, the service is stopped: the responses to callers, and the processes left.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use testbed::{Conversation, EndOnDrop, Request, Response, all_at_once};

use crate::embedded::{EmbeddedBuilder, EmbeddedService, is_alive};
use crate::{ADRIATICUM, run_alone};

/// Sends requests until `over` is set. Returns all responses.
fn keep_asking(service: &EmbeddedService, key: &str, caller: usize, over: &AtomicBool) -> Vec<Response> {
    let mut responses = Vec::new();
    while !over.load(Relaxed) {
        let chat = Conversation::user(format!("Tell a story about {caller} and {}.", responses.len())).max_tokens(24);
        let response = service.complete(key, &chat);
        if response.status != 200 {
            thread::sleep(Duration::from_millis(50));
        }
        responses.push(response);
    }
    responses
}

#[test]
fn a_killed_engine_fails_only_requests_in_flight_and_service_resumes() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().start();
    let (key, revoked) = (service.key(), service.key());
    service.run_ok(&["keys", "revoke", &revoked["adria_".len()..][..12]]);
    let before = service.rows().len();
    let first = service.engine_pid().expect("an engine");
    let over = AtomicBool::new(false);
    let responses: Vec<Response> = thread::scope(|scope| {
        let callers: Vec<_> = (0..6)
            .map(|at| {
                scope.spawn({
                    let (service, key, over) = (&service, &key, &over);
                    move || keep_asking(service, key, at, over)
                })
            })
            .collect();
        service.wait_for_status("load", |status| status.get("running") >= 4);
        kill_process(first, Signal::KILL).unwrap();
        for refused in [revoked.as_str(), "nonsense"] {
            service.complete(refused, &Conversation::user("Hello!")).expect_error("invalid_api_key");
        }
        service.wait_for_status("load on another engine", |status| {
            status.get("running") >= 4 && service.engine_pid().is_some_and(|pid| pid != first)
        });
        over.store(true, Relaxed);
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });

    let mut ids = HashSet::new();
    let mut failed = 0;
    for response in &responses {
        let id = match response.status {
            200 => response.completion().id,
            502 => {
                response.expect_error("inference_error");
                failed += 1;
                response.error().request_id
            }
            _ => {
                response.expect_error("service_unavailable");
                assert!(response.header("retry-after").is_some(), "{response:?}");
                response.error().request_id
            }
        };
        assert!(ids.insert(id));
    }
    // Requests in flight, and those sent before the supervisor noticed: a few of each caller, also on a busy machine.
    assert!((1..=60).contains(&failed), "{failed} of {} failed", responses.len());
    let rows = service.rows();
    assert_eq!(rows.len() - before, responses.len());
    let recorded: HashSet<_> = rows.iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect();
    assert!(ids.is_subset(&recorded) && recorded.len() == rows.len());
}

/// Before the engine's process was watched, a suspended one stayed "ready" for a minute, and nothing was logged.
#[test]
fn a_suspended_engine_is_noticed_within_seconds_and_replaced() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().start();
    let key = service.key();
    let engine = service.engine_pid().expect("an engine");
    let mut caller = service.connect();
    caller.send(Request::chat(&key, Conversation::endless().body()).bytes());
    service.wait_for_status("a running request", |status| status.get("running") == 1);
    assert_eq!(service.get_ops("/readyz").0, 200);

    kill_process(engine, Signal::STOP).unwrap();
    let began = Instant::now();
    let reason = ADRIATICUM.wait_for("readiness to notice", || {
        let (status, body) = service.get_ops("/readyz");
        (status == 503).then_some(body)
    });
    // Three seconds on an idle machine.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(reason.contains("The engine does not respond"), "{reason}");
    let refused = service.complete(&key, &Conversation::user("Hello!"));
    assert!(refused.expect_error("service_unavailable").contains("does not respond"), "{refused:?}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let log = service.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("the engine does not respond")).collect();
    assert!(matches!(&lines[..], [line] if line.contains("suspended") && line.contains("WARN")), "{lines:?}");

    // It is not resumed.
    ADRIATICUM.wait_for("another engine", || match service.engine_pid() {
        Some(pid) if pid == engine => {
            let (status, body) = service.get_ops("/readyz");
            assert!(status == 503 || service.engine_pid() != Some(engine), "it was reported ready again: {body}");
            None
        }
        other => other,
    });
    caller.response().expect_error("inference_error");
    service.wait_until_loaded();
    assert_eq!(service.get_ops("/readyz").0, 200);
    assert!(service.log().contains("the engine is hung and is killed"), "{}", service.log());
}

#[test]
fn an_engine_that_is_resumed_finishes_its_requests() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().start();
    let key = service.key();
    let engine = service.engine_pid().expect("an engine");
    let mut caller = service.connect();
    let chat = Conversation::user("Tell a long story about a cat.").max_tokens(200);
    caller.send(Request::chat(&key, chat.body()).bytes());
    service.wait_for_status("a running request", |status| status.get("running") == 1);
    kill_process(engine, Signal::STOP).unwrap();
    ADRIATICUM.wait_for("readiness to notice", || (service.get_ops("/readyz").0 == 503).then_some(()));
    kill_process(engine, Signal::CONT).unwrap();
    caller.response().completion();
    ADRIATICUM.wait_for("readiness to return", || (service.get_ops("/readyz").0 == 200).then_some(()));
    assert_eq!(service.engine_pid(), Some(engine));
    assert!(service.log().contains("the engine responds again"), "{}", service.log());
}

/// As under a tool that limits its CPU time, or on a machine with other busy processes: slow is not hung.
#[test]
fn an_engine_that_gets_a_tenth_of_the_time_is_left_alone() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().start();
    let key = service.key();
    let engine = service.engine_pid().expect("an engine");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&over);
        scope.spawn(|| {
            while !over.load(Relaxed) {
                kill_process(engine, Signal::STOP).unwrap();
                thread::sleep(Duration::from_millis(270));
                kill_process(engine, Signal::CONT).unwrap();
                thread::sleep(Duration::from_millis(30));
            }
        });
        let began = Instant::now();
        let mut at = 0;
        let responses: Vec<_> = std::iter::from_fn(|| {
            at += 1;
            let chat = Conversation::user(format!("Tell a story about {at} cats.")).max_tokens(8);
            (began.elapsed() < Duration::from_secs(15)).then(|| service.complete(&key, &chat))
        })
        .collect();
        assert!(responses.iter().all(|response| response.status == 200), "{responses:?}");
    });
    assert_eq!(service.engine_pid(), Some(engine));
    assert!(!service.log().contains("the engine does not respond"), "{}", service.log());
}

#[test]
fn requests_during_startup_are_completed_or_get_retry_after() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().start_unloaded();
    let key = service.key();
    let chats: Vec<_> = (0..16).map(|at| Conversation::user(format!("Count to {at}.")).max_tokens(4)).collect();
    let responses = all_at_once(&chats, |chat| {
        ADRIATICUM
            .wait_for("an engine", || Some(service.complete(&key, chat)).filter(|response| response.status != 503))
    });
    assert!(responses.iter().all(|response| response.status == 200), "{responses:?}");
}

#[test]
fn an_engine_does_not_outlive_a_killed_service() {
    let _alone = run_alone();
    let mut service = EmbeddedBuilder::new().start();
    let key = service.key();
    let mut caller = service.connect();
    caller.send(Request::chat(&key, Conversation::endless().body()).bytes());
    service.wait_for_status("a running request", |status| status.get("running") == 1);
    let (engine, left_behind) = (service.engine_pid().expect("an engine"), service.engine_socket());
    service.kill();
    ADRIATICUM.wait_for("the engine's end", || (!is_alive(engine)).then_some(()));

    service.start_again();
    service.wait_until_loaded();
    assert!(!left_behind.exists(), "the next service removes it");
}

#[test]
fn a_stopping_service_finishes_requests_in_flight_and_stops_its_engine() {
    let _alone = run_alone();
    let mut service = EmbeddedBuilder::new().set("api.stop_timeout", "9m").start();
    let key = service.key();
    let mut callers: Vec<_> = (0..4).map(|_| service.connect()).collect();
    for (at, caller) in callers.iter_mut().enumerate() {
        let chat = Conversation::user(format!("Tell a story about {at} cats.")).max_tokens(64);
        caller.send(Request::chat(&key, chat.body()).bytes());
    }
    service.wait_for_status("running requests", |status| status.get("running") == 4);
    let (engine, socket) = (service.engine_pid().expect("an engine"), service.engine_socket());
    // The whole process group gets the signal, as from a terminal or a service manager.
    for process in [service.pid(), engine] {
        kill_process(process, Signal::TERM).unwrap();
    }
    for caller in &mut callers {
        caller.response().completion();
    }
    assert_eq!(service.wait_for_exit().code(), Some(0));
    ADRIATICUM.wait_for("the engine's end", || (!is_alive(engine)).then_some(()));
    assert!(service.rows().iter().all(|row| row["status"] == 200 || row["status"] == 503), "{:?}", service.rows());
    assert!(!socket.exists(), "{} is left behind", socket.display());
}
