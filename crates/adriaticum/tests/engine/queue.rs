//! The queue: its order, its limits and its refusals.

use std::time::{Duration, Instant};

use testbed::{Conversation, Request, Response};

use crate::embedded::{EmbeddedBuilder, EmbeddedService};
use crate::run_alone;

fn assert_no_room(response: &Response) {
    response.expect_error("service_unavailable");
    let seconds: u64 = response.header("retry-after").expect("when to try again").parse().unwrap();
    assert!(seconds > 0, "{response:?}");
}

#[test]
fn a_key_with_forty_long_requests_does_not_hold_up_another_keys_short_one() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().set("engine.requests", "4").start();
    let (greedy, modest) = (service.key(), service.key());
    let crowd: Vec<_> = (0..40)
        .map(|_| {
            let mut connection = service.connect();
            connection.send(Request::chat(&greedy, Conversation::endless().body()).bytes());
            connection
        })
        .collect();
    service.wait_for_status("a crowd", |status| status.get("waiting") + status.get("running") == 40);
    service.complete(&modest, &Conversation::user("Hello!").max_tokens(4)).completion();
    // It gets the reserved slot: hardly any of the other requests has finished meanwhile.
    let status = service.status();
    assert!(status.get("waiting") >= 30, "{status:?}");
    drop(crowd);
    service.wait_for_status("an idle engine", |status| status.is_idle());
}

/// A service with one slot, which is taken.
fn while_busy(setup: EmbeddedBuilder, test: impl FnOnce(&EmbeddedService, &str)) {
    let service = setup.set("engine.requests", "1").start();
    let key = service.key();
    let mut busy = service.connect();
    busy.send(Request::chat(&key, Conversation::endless().body()).bytes());
    service.wait_for_status("a running request", |status| status.get("running") == 1);
    test(&service, &key);
    assert_eq!(service.status().get("running"), 1, "it was busy throughout");
    drop(busy);
    service.wait_for_status("an idle engine", |status| status.is_idle());
    service.complete(&key, &Conversation::user("Hello!").max_tokens(1)).completion();
}

#[test]
fn a_full_queue_refuses_with_retry_after() {
    let _alone = run_alone();
    while_busy(EmbeddedBuilder::new().set("engine.queue", "1"), |service, key| {
        let mut waiting = service.connect();
        waiting.send(Request::chat(key, Conversation::user("Hello!").body()).bytes());
        service.wait_for_status("a waiting request", |status| status.get("waiting") == 1);
        for _ in 0..3 {
            assert_no_room(&service.complete(key, &Conversation::user("Hello!")));
        }
        assert_eq!(service.status().get("waiting"), 1, "the queued request still waits");
    });
}

#[test]
fn a_request_that_waits_too_long_in_the_queue_is_refused() {
    let _alone = run_alone();
    while_busy(EmbeddedBuilder::new().set("engine.wait", "500ms"), |service, key| {
        let began = Instant::now();
        let response = service.complete(key, &Conversation::user("Hello!"));
        assert_no_room(&response);
        assert!(began.elapsed() >= Duration::from_millis(490), "{:?}", began.elapsed());
        let row = service.row(&response.error().request_id);
        assert_eq!((&row["status"], &row["code"]), (&503.into(), &"service_unavailable".into()), "{row}");
    });
}
