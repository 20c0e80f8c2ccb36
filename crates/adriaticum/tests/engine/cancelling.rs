//! A caller that disconnects frees its capacity, whether its request runs or is queued.

use serde_json::Value;
use testbed::{Conversation, Request};

use crate::embedded::EmbeddedBuilder;
use crate::{ADRIATICUM, run_alone};

#[test]
fn a_caller_that_disconnects_frees_its_capacity() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().set("engine.requests", "1").start();
    let key = service.key();
    let before = service.wait_for_status("an idle engine", |status| status.is_idle()).get("generated_tokens");
    let long = Request::chat(&key, Conversation::endless().body()).bytes();
    let (mut running, mut waiting) = (service.connect(), service.connect());
    running.send(&long);
    service.wait_for_status("tokens", |status| status.get("running") == 1 && status.get("generated_tokens") > before);
    waiting.send(&long);
    service.wait_for_status("the second one", |status| status.get("waiting") == 1);

    drop(waiting);
    // The status is updated once per step, the count of disconnects immediately.
    let status =
        service.wait_for_status("one hang-up", |status| status.get("cancelled") == 1 && status.get("waiting") == 0);
    assert_eq!(status.get("running"), 1, "the other one still runs: {status:?}");
    drop(running);
    let status = service.wait_for_status("two hang-ups", |status| status.get("cancelled") == 2 && status.is_idle());
    let generated = status.get("generated_tokens") - before;
    assert!(generated < u64::from(Conversation::ENDLESS), "{generated} tokens: it was finished, not cancelled");

    let hung_up = || service.rows().into_iter().filter(|row| row["status"] == 499).collect::<Vec<_>>();
    for row in ADRIATICUM.wait_for("both in the ledger", || Some(hung_up()).filter(|rows| rows.len() == 2)) {
        assert_eq!(row["code"], "client_closed", "{row}");
        for figure in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(row[figure], Value::Null, "{row}");
        }
    }
    // The capacity is free for the next request.
    service.complete(&key, &Conversation::user("Hello!").max_tokens(2)).completion();
}
