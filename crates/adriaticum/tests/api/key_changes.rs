//! Keys live: rotation with overlap, expiry, permission, owner, notes and budgets from the start.

use serde_json::Value;
use testbed::{Behaviour, FakeRuntime, Service};

use crate::ADRIATICUM;

fn service() -> (Service, FakeRuntime) {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    (ADRIATICUM.service_with(&[&runtime]).start(), runtime)
}

fn listed(service: &Service, id: &str) -> Value {
    let keys: Vec<Value> = serde_json::from_str(&service.run_ok(&["keys", "list", "--json"])).unwrap();
    keys.into_iter().find(|key| key["id"] == id).unwrap()
}

#[test]
fn a_rotated_key_has_a_new_secret_and_the_old_one_works_until_the_overlap_ends() {
    let (service, _runtime) = service();
    let old = service.key();
    let id = old[6..18].to_owned();
    let new = service.run_ok(&["keys", "rotate", &id, "--overlap", "1h"]).trim().to_owned();
    assert!(new != old && new[6..18] == id, "the same public id");
    service.chat(&old, "hello").completion();
    service.chat(&new, "hello").completion();
    assert!(listed(&service, &id)["previous_until"].is_string());

    // Once more: only the secret before the newest one works, and with no overlap not even that.
    let newest = service.run_ok(&["keys", "rotate", &id, "--overlap", "0s"]).trim().to_owned();
    service.chat(&old, "hello").expect_error("invalid_api_key");
    service.chat(&new, "hello").expect_error("invalid_api_key");
    service.chat(&newest, "hello").completion();
    assert!(listed(&service, &id)["previous_until"].is_null());

    let short = service.run_ok(&["keys", "rotate", &id, "--overlap", "1s"]).trim().to_owned();
    ADRIATICUM.wait_for("the end of the overlap", || (service.chat(&newest, "hello").status == 401).then_some(()));
    service.chat(&short, "hello").completion();

    service.run_ok(&["keys", "revoke", &id]);
    service.chat(&short, "hello").expect_error("invalid_api_key");
    let refused = service.run(&["keys", "rotate", &id]);
    assert!(refused.code != Some(0) && refused.stderr.contains("or it is revoked"), "{refused:?}");
}

#[test]
fn expiry_permission_and_note_can_be_changed_and_hold_at_once() {
    let (service, _runtime) = service();
    let key = service.key_with("bot", &["--without-completions"]);
    let id = &key[6..18];
    service.chat(&key, "hello").expect_error("insufficient_permission");
    service.run_ok(&["keys", "set", id, "--completions", "on", "--note", "for the night shift", "--expires", "1s"]);
    assert_eq!(listed(&service, id)["note"], "for the night shift");
    ADRIATICUM.wait_for("its expiry", || (service.chat(&key, "hello").status == 401).then_some(()));
    service.run_ok(&["keys", "set", id, "--expires", "never"]);
    service.chat(&key, "hello").completion();
    assert!(listed(&service, id)["expires_at"].is_null());
    service.run_ok(&["keys", "set", id, "--completions", "off"]);
    service.chat(&key, "hello").expect_error("insufficient_permission");
    for (arguments, says) in [
        (&["aaaaaaaaaaaa", "--note", "x"][..], "there is no key aaaaaaaaaaaa"),
        (&[id, "--owner", "nobody@example.org"], "there is no account nobody@example.org"),
        (&[id, "--expires", "soon"], "it must be a duration"),
        (&[id, "--completions", "maybe"], "it is on or off"),
    ] {
        let output = service.run(&[&["keys", "set"], arguments].concat());
        assert!(output.code != Some(0) && output.stderr.contains(says), "{arguments:?}: {}", output.stderr);
    }
}

#[test]
fn a_key_can_have_a_budget_from_its_first_request_on() {
    let (service, _runtime) = service();
    let key = service.key_with("bot", &["--budget", "requests-per-day=1", "--budget", "requests-in-flight=4"]);
    service.chat(&key, "hello").completion();
    service.chat(&key, "hello").expect_error("insufficient_permission");
    for budget in ["requests-per-day", "requests-per-week=1", "requests-per-day=many"] {
        assert_ne!(service.run(&["keys", "create", "bot", "--budget", budget]).code, Some(0), "{budget}");
    }
}
