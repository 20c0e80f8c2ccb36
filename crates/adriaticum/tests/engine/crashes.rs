//! The engine dies, the service dies, the service is stopped: who notices, and what is left.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use testbed::{Answer, Chat, Request, all_at_once};

use crate::embedded::{Embedded, EmbeddedService, is_alive};
use crate::{ADRIATICUM, turn};

/// Asks again and again until it is told to stop; gives every answer.
fn keep_asking(service: &EmbeddedService, key: &str, caller: usize, over: &AtomicBool) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !over.load(Relaxed) {
        let chat = Chat::user(format!("Tell a story about {caller} and {}.", answers.len())).max_tokens(24);
        let answer = service.chat(key, &chat);
        if answer.status != 200 {
            thread::sleep(Duration::from_millis(50));
        }
        answers.push(answer);
    }
    answers
}

#[test]
fn a_killed_engine_costs_what_it_worked_on_and_service_resumes_by_itself() {
    let _turn = turn();
    let service = Embedded::new().start();
    let (key, revoked) = (service.key(), service.key());
    service.output(&["keys", "revoke", &revoked["adria_".len()..][..12]]);
    let before = service.rows().len();
    let first = service.engine_pid().expect("an engine");
    let over = AtomicBool::new(false);
    let answers: Vec<Answer> = thread::scope(|scope| {
        let callers: Vec<_> = (0..6)
            .map(|at| {
                scope.spawn({
                    let (service, key, over) = (&service, &key, &over);
                    move || keep_asking(service, key, at, over)
                })
            })
            .collect();
        service.wait_for("load", |status| status.get("running") >= 4);
        kill_process(first, Signal::KILL).unwrap();
        for refused in [revoked.as_str(), "nonsense"] {
            service.chat(refused, &Chat::user("Hello!")).refused_as("invalid_api_key");
        }
        service.wait_for("load on another engine", |status| {
            status.get("running") >= 4 && service.engine_pid().is_some_and(|pid| pid != first)
        });
        over.store(true, Relaxed);
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });

    let mut ids = HashSet::new();
    let mut failed = 0;
    for answer in &answers {
        let id = match answer.status {
            200 => answer.completed().id,
            502 => {
                answer.refused_as("inference_error");
                failed += 1;
                answer.refused().request_id
            }
            _ => {
                answer.refused_as("service_unavailable");
                assert!(answer.header("retry-after").is_some(), "{answer:?}");
                answer.refused().request_id
            }
        };
        assert!(ids.insert(id));
    }
    // Those in flight, and whoever came before the supervisor knew: a few of each caller's, however busy the machine is.
    assert!((1..=60).contains(&failed), "{failed} of {} failed", answers.len());
    let rows = service.rows();
    assert_eq!(rows.len() - before, answers.len());
    let recorded: HashSet<_> = rows.iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect();
    assert!(ids.is_subset(&recorded) && recorded.len() == rows.len());
}

#[test]
fn everyone_who_asks_at_the_start_is_told_to_wait_or_answered() {
    let _turn = turn();
    let service = Embedded::new().start_unloaded();
    let key = service.key();
    let chats: Vec<_> = (0..16).map(|at| Chat::user(format!("Count to {at}.")).max_tokens(4)).collect();
    let answers = all_at_once(&chats, |chat| {
        ADRIATICUM.eventually("an engine", || Some(service.chat(&key, chat)).filter(|answer| answer.status != 503))
    });
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
}

#[test]
fn an_engine_does_not_outlive_a_killed_service() {
    let _turn = turn();
    let mut service = Embedded::new().start();
    let key = service.key();
    let mut caller = service.connect();
    caller.send(Request::chat(&key, Chat::endless().body()).bytes());
    service.wait_for("a running request", |status| status.get("running") == 1);
    let (engine, left_behind) = (service.engine_pid().expect("an engine"), service.engine_socket());
    service.kill();
    ADRIATICUM.eventually("the engine's end", || (!is_alive(engine)).then_some(()));

    service.start_again();
    service.wait_until_loaded();
    assert!(!left_behind.exists(), "the next one tidies up");
}

#[test]
fn a_stopped_service_finishes_what_runs_and_takes_the_engine_along() {
    let _turn = turn();
    let mut service = Embedded::new().set("api.stop_timeout", "9m").start();
    let key = service.key();
    let mut callers: Vec<_> = (0..4).map(|_| service.connect()).collect();
    for (at, caller) in callers.iter_mut().enumerate() {
        let chat = Chat::user(format!("Tell a story about {at} cats.")).max_tokens(64);
        caller.send(Request::chat(&key, chat.body()).bytes());
    }
    service.wait_for("running requests", |status| status.get("running") == 4);
    let (engine, socket) = (service.engine_pid().expect("an engine"), service.engine_socket());
    // As a terminal or a service manager does it: everyone in the group hears it.
    for process in [service.pid(), engine] {
        kill_process(process, Signal::TERM).unwrap();
    }
    for caller in &mut callers {
        caller.answer().completed();
    }
    assert_eq!(service.wait_for_exit().code(), Some(0));
    ADRIATICUM.eventually("the engine's end", || (!is_alive(engine)).then_some(()));
    assert!(service.rows().iter().all(|row| row["status"] == 200 || row["status"] == 503), "{:?}", service.rows());
    assert!(!socket.exists(), "{} is left behind", socket.display());
}
