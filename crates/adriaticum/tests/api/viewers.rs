//! A change in the console is authorized within its transaction: the session must not have ended, the account must not be
//! disabled, and the role at that time counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;
use testbed::{Behaviour, FakeRuntime, Response, Service};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

fn service() -> (Service, FakeRuntime) {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    (ADRIATICUM.service_with(&[&runtime]).set("console.keys_per_person", "1000000").start(), runtime)
}

/// Sends a form in two steps: `meanwhile` runs after the head, with which the session is looked up, and before the body.
fn send_late(visitor: &Visitor, target: &str, form: &str, meanwhile: impl FnOnce()) -> Response {
    let request = visitor.request("POST", target, form).header("Expect", "100-continue");
    let mut connection = visitor.connect();
    assert_eq!(connection.send(request.head()).response().status, 100, "{target}");
    meanwhile();
    connection.send(form).response()
}

fn json(service: &Service, arguments: &[&str]) -> Vec<Value> {
    serde_json::from_str(&service.run_ok(arguments)).unwrap()
}

fn assert_signed_out(response: &Response, target: &str) {
    assert_eq!((response.status, response.header("location")), (303, Some("/sign-in")), "{target}: {response:?}");
}

/// The public id of a key that the person creates.
fn create_key(visitor: &Visitor, token: &str) -> String {
    let created = visitor.send("POST", "/keys", &format!("token={token}&name=first&completions=yes&lifetime=never"));
    let page = String::from_utf8(created.body).unwrap();
    page.split_once("adria_").unwrap_or_else(|| panic!("no key: {page}")).1[..12].to_owned()
}

#[test]
fn a_person_who_was_just_disabled_changes_nothing() {
    let (service, _runtime) = service();
    Visitor::new(&service).join(&service, "Ada", "admin");
    let (bob, token) = Visitor::new(&service).join(&service, "Bob", "developer").with_form("/keys");
    let id = create_key(&bob, &token);
    let before = json(&service, &["keys", "list", "--json"]);
    let mut session = (bob, token);
    for (target, form) in [
        ("/keys".to_owned(), "name=second&completions=yes&lifetime=never"),
        (format!("/keys/{id}/rename"), "name=other"),
        (format!("/keys/{id}/rotate"), "overlap=24h"),
        (format!("/keys/{id}/settings"), "expires=2030-01-31&note=mine&project=x"),
        (format!("/keys/{id}/revoke"), ""),
        ("/account/name".to_owned(), "name=Robert"),
        ("/account/sessions/end-others".to_owned(), ""),
    ] {
        let (bob, token) = &session;
        let disable = || drop(service.run_ok(&["accounts", "disable", "bob@example.com"]));
        assert_signed_out(&send_late(bob, &target, &format!("token={token}&{form}"), disable), &target);
        assert_eq!(json(&service, &["keys", "list", "--json"]), before, "{target}");
        service.run_ok(&["accounts", "enable", "bob@example.com"]);
        session = Visitor::new(&service).enter("Bob").with_form("/keys");
    }
    assert_eq!(json(&service, &["accounts", "list", "--json"])[1]["name"], "Bob");
}

#[test]
fn an_administrator_who_was_just_demoted_changes_nothing() {
    let (service, _runtime) = service();
    Visitor::new(&service).join(&service, "Ada", "admin");
    let mut mallory = Visitor::new(&service).join(&service, "Mallory", "admin").with_form("/team");
    let id = json(&service, &["accounts", "list", "--json"])[0]["id"].as_str().unwrap().to_owned();
    for (target, form) in [
        ("/limits".to_owned(), "scope=everyone&kind=requests-per-day&amount=1"),
        ("/prices".to_owned(), "project=&prompt=1&completion=1&currency=EUR"),
        ("/team/invitations".to_owned(), "note=me&role=developer&lifetime=7"),
        (format!("/team/{id}/revoke-keys"), ""),
        (format!("/team/{id}/sign-out"), ""),
        (format!("/team/{id}/profile"), "name=Fool&email=fool%40example.com"),
    ] {
        let (visitor, token) = &mallory;
        let demote = || drop(service.run_ok(&["accounts", "role", "mallory@example.com", "developer"]));
        assert_signed_out(&send_late(visitor, &target, &format!("token={token}&{form}"), demote), &target);
        service.run_ok(&["accounts", "role", "mallory@example.com", "admin"]);
        mallory = Visitor::new(&service).enter("Mallory").with_form("/team");
    }
    assert_eq!(json(&service, &["limits", "list", "--json"]), Vec::<Value>::new());
    assert_eq!(json(&service, &["accounts", "links", "--json"]), Vec::<Value>::new());
    assert_eq!(json(&service, &["accounts", "list", "--json"])[0]["name"], "Ada");
}

#[test]
fn a_session_that_has_ended_gets_no_completion_in_the_playground() {
    let (service, runtime) = service();
    let (bob, token) = Visitor::new(&service).join(&service, "Bob", "developer").with_form("/keys");
    let body = testbed::chat_body("hello");
    let request = bob.request("POST", "/playground", &body).header("Content-Type", "application/json");
    let request = request.header("X-Form-Token", &token).header("Expect", "100-continue");
    let mut connection = bob.connect();
    assert_eq!(connection.send(request.head()).response().status, 100);
    service.run_ok(&["accounts", "sign-out", "bob@example.com"]);
    assert_eq!(connection.send(&body).response().status, 401);
    assert_eq!(runtime.requests().len(), 0);
}

/// The export is larger than the buffers between both sides.
#[test]
fn an_export_ends_with_the_session() {
    let service = ADRIATICUM.service().on_sqlite().start();
    let ada = Visitor::new(&service).join(&service, "Ada", "admin");
    let database = rusqlite::Connection::open(service.data().join("adriaticum.db")).unwrap();
    let fill = "CREATE TEMP TABLE line AS SELECT * FROM audit LIMIT 1;
        UPDATE line SET number = NULL;
        WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 200000)
        INSERT INTO audit SELECT line.* FROM numbers, line;";
    database.execute_batch(fill).unwrap();
    let mut connection = ada.connect();
    let export = connection.send(ada.request("GET", "/audit.json", "").bytes()).response_to_head();
    assert_eq!(export.status, 200);
    service.run_ok(&["accounts", "sign-out", "ada@example.com"]);
    let rest = connection.read_to_end();
    assert!(!rest.ends_with(b"\r\n0\r\n\r\n"), "{} bytes, with a regular end", rest.len());
}

/// Several tabs repeat a change until they are refused, while the person loses the right to make it. `VIEWER_RACES` sets
/// the number of races.
#[test]
fn nothing_follows_the_loss_of_a_right() {
    let races = std::env::var("VIEWER_RACES").map_or(10, |races| races.parse().unwrap());
    let (service, _runtime) = service();
    let ada = Visitor::new(&service).join(&service, "Ada", "admin");
    let email = "mallory@example.com";
    Visitor::new(&service).join(&service, "Mallory", "admin");
    let create = "name=more&completions=yes&lifetime=never";
    let cases = [
        ("/keys", create, &["disable", email][..], &["enable", email][..], "disabled-account"),
        (
            "/limits",
            "scope=everyone&kind=tokens-per-day&amount=100",
            &["role", email, "developer"],
            &["role", email, "admin"],
            "gave-role",
        ),
        ("/account/name", "name=Mallory", &["sign-out", email], &[], "ended-sessions"),
    ];
    for race in 0..races {
        let (target, form, lose, regain, action) = &cases[race % cases.len()];
        let (mallory, token) = Visitor::new(&service).enter("Mallory").with_form("/account");
        let form = format!("token={token}&{form}");
        let has_begun = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (mut connection, request) = (mallory.connect(), mallory.request("POST", target, &form));
                    loop {
                        let response = connection.send(request.bytes()).response();
                        if response.status == 401 || response.header("location") == Some("/sign-in") {
                            return;
                        }
                        has_begun.store(true, Ordering::Relaxed);
                    }
                });
            }
            ADRIATICUM.wait_for("a first change", || has_begun.load(Ordering::Relaxed).then_some(()));
            service.run_ok(&[&["accounts"], *lose].concat());
        });
        let entries =
            |query: &str| -> Vec<Value> { serde_json::from_str(&ada.page(&format!("/audit.json?{query}"))).unwrap() };
        let lost = entries(&format!("action={action}&actor=operator"))[0]["number"].as_u64().unwrap();
        let last = entries("actor=mallory")[0].clone();
        assert!(last["number"].as_u64().unwrap() < lost, "race {race}: {last} after {lost}");
        if !regain.is_empty() {
            service.run_ok(&[&["accounts"], *regain].concat());
        }
    }
}
