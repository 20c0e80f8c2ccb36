//! Key updates: rotation with overlap, expiry, permission, owner, notes and budgets from the start.

use serde_json::Value;
use testbed::{Behaviour, FakeRuntime, Service};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

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

    // Rotated again: at most the previous secret works, and without an overlap not even that one.
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
fn the_overlap_of_a_rotation_can_be_ended_early() {
    let (service, _runtime) = service();
    let (bob, token) = Visitor::new(&service).join(&service, "Bob", "developer").with_form("/keys");
    let old = service.key();
    let id = old[6..18].to_owned();
    let refused = service.run(&["keys", "end-overlap", &id]);
    assert!(refused.code != Some(0) && refused.stderr.contains("no old secret that still works"), "{refused:?}");
    let new = service.run_ok(&["keys", "rotate", &id]).trim().to_owned();
    service.chat(&old, "hello").completion();
    assert_eq!(bob.send("POST", &format!("/keys/{id}/end-overlap"), &format!("token={token}")).status, 404);
    service.run_ok(&["keys", "end-overlap", &id]);
    service.chat(&old, "hello").expect_error("invalid_api_key");
    service.chat(&new, "hello").completion();
    assert!(listed(&service, &id)["previous_until"].is_null());

    service.run_ok(&["keys", "set", &id, "--owner", "bob@example.com"]);
    let newest = service.run_ok(&["keys", "rotate", &id]).trim().to_owned();
    assert!(bob.page(&format!("/keys/{id}")).contains("End the old secret now"));
    assert_eq!(bob.send("POST", &format!("/keys/{id}/end-overlap"), &format!("token={token}")).status, 303);
    assert!(!bob.page(&format!("/keys/{id}")).contains("End the old secret now"));
    service.chat(&new, "hello").expect_error("invalid_api_key");
    service.chat(&newest, "hello").completion();
}

#[test]
fn only_an_administrator_lifts_what_an_administrator_has_restricted() {
    let (service, _runtime) = service();
    let (bob, token) = Visitor::new(&service).join(&service, "Bob", "developer").with_form("/keys");
    let key = service.key();
    let id = &key[6..18];
    service.run_ok(&["keys", "set", id, "--owner", "bob@example.com"]);
    let path = format!("/keys/{id}");
    let save = |expires: &str, completions: bool| {
        let completions = if completions { "&completions=yes" } else { "" };
        let form = format!("token={token}&expires={expires}&note=&project={completions}");
        bob.send("POST", &format!("{path}/settings"), &form).status
    };
    // The owner can lift the owner's restrictions.
    assert_eq!(save("2031-01-31", false), 303);
    service.chat(&key, "hello").expect_error("insufficient_permission");
    assert_eq!(save("", true), 303);
    service.chat(&key, "hello").completion();
    assert!(!bob.page(&path).contains("set by an administrator"));

    service.run_ok(&["keys", "set", id, "--expires", "365d", "--completions", "off"]);
    assert_eq!(bob.page(&path).matches("set by an administrator").count(), 4, "{}", bob.page(&path));
    let set = listed(&service, id)["expires_at"].as_str().unwrap()[..10].to_owned();
    assert_eq!(save(&set, true), 403, "completions");
    assert_eq!(save("", false), 403, "no expiry");
    assert_eq!(save("2099-01-31", false), 403, "a later expiry");
    service.chat(&key, "hello").expect_error("insufficient_permission");
    let other = service.key_with("for a month", &["--expires", "30d"]);
    let earlier = listed(&service, &other[6..18])["expires_at"].as_str().unwrap()[..10].to_owned();
    assert_eq!(save(&earlier, false), 303, "an earlier expiry");
    assert_eq!(listed(&service, id)["expires_at"], format!("{earlier}T23:59:59Z"));
    assert_eq!(save(&set, false), 303, "and back");
    assert_eq!(save("2099-01-31", false), 403);

    service.run_ok(&["keys", "set", id, "--expires", "never", "--completions", "on"]);
    assert!(!bob.page(&path).contains("set by an administrator"));
    service.chat(&key, "hello").completion();
    assert_eq!(save("2099-01-31", true), 303);
}

#[test]
fn the_number_of_active_keys_of_a_person_is_limited() {
    let service = ADRIATICUM.service().set("console.keys_per_person", "2").start();
    let (bob, token) = Visitor::new(&service).join(&service, "Bob", "developer").with_form("/keys");
    let create = || bob.send("POST", "/keys", &format!("token={token}&name=more&completions=yes&lifetime=never"));
    // Concurrently, because the check is part of the creation.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let tabs: Vec<_> = (0..8).map(|_| scope.spawn(|| create().status)).collect();
        tabs.into_iter().map(|tab| tab.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2, "{statuses:?}");
    let refused = create();
    let page = String::from_utf8(refused.body).unwrap();
    assert!(refused.status == 409 && page.contains("at most 2 active keys"), "{page}");
    // Keys of the command line have no owner, and a revoked one does not count.
    service.key();
    service.key();
    let keys: Vec<Value> = serde_json::from_str(&service.run_ok(&["keys", "list", "--json"])).unwrap();
    let own = keys.iter().find(|key| key["owner"] == "bob@example.com").unwrap();
    service.run_ok(&["keys", "revoke", own["id"].as_str().unwrap()]);
    assert_eq!(create().status, 200);
}

#[test]
fn expiry_permission_and_note_can_be_changed_and_apply_immediately() {
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
        (&[id, "--completions", "maybe"], "it must be on or off"),
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
