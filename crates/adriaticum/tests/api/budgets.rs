//! Budgets, rates and requests in flight, of a key and of everyone.

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime, Request, Service, ShiftedClock, chat_body, on_postgres};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

/// Tokens that the fake runtime measures for a completion.
const TOKENS: u64 = 7;
/// Tokens that a request with the content `hello` may need: its bytes, the part of a template, and `max_tokens`.
const NEEDED: u64 = 5 + 16 + 256 + 248;

struct Fixture {
    runtime: FakeRuntime,
    service: Service,
    key: String,
}

impl Fixture {
    fn new(behaviour: Behaviour) -> Self {
        let runtime = FakeRuntime::start(behaviour);
        let service = ADRIATICUM.service_with(&[&runtime]).start();
        let key = service.key();
        Self { runtime, service, key }
    }

    fn set(&self, of: &[&str], kind: &str, amount: u64) {
        let amount = amount.to_string();
        self.service.run_ok(&[&["limits", "set"], of, &[kind, &amount]].concat());
    }

    fn of_key(&self) -> [&str; 2] {
        ["--key", public_id(&self.key)]
    }

    fn complete(&self) {
        self.service.chat(&self.key, "hello").completion();
    }

    /// The only limit, as the command line lists it.
    fn listed(&self) -> Value {
        let mut listed: Vec<Value> = serde_json::from_str(&self.service.run_ok(&["limits", "list", "--json"])).unwrap();
        assert_eq!(listed.len(), 1);
        listed.remove(0)
    }
}

fn public_id(key: &str) -> &str {
    &key[6..18]
}

#[test]
fn a_spent_budget_is_a_403_that_names_it_until_it_is_raised_or_removed() {
    let tokens = TOKENS + NEEDED;
    for (kind, amount, says) in [
        (
            "tokens-per-day",
            tokens,
            "The key's budget of 532 tokens per day does not cover this request: 14 used, 0 reserved by requests in flight, 518 left; this request may need 525. It renews at 2",
        ),
        ("tokens-per-month", tokens, "of 532 tokens per month does not cover this request: 14 used"),
        (
            "requests-per-day",
            2,
            "of 2 requests per day does not cover this request: 2 used, 0 reserved by requests in flight, 0 left; this request may need 1. It renews at 2",
        ),
        ("requests-per-month", 2, "of 2 requests per month does not cover this request: 2 used"),
    ] {
        let fixture = Fixture::new(Behaviour::Echo);
        let other = fixture.service.key();
        fixture.set(&fixture.of_key(), kind, amount);
        fixture.complete();
        fixture.complete();
        let asked = fixture.runtime.requests().len();
        let refused = fixture.service.chat(&fixture.key, "hello");
        assert_eq!(refused.status, 403);
        assert_eq!(refused.header("x-should-retry"), Some("false"));
        let message = refused.expect_error("insufficient_permission");
        assert!(message.contains(says) && message.ends_with("T00:00:00Z."), "{message}");
        assert_eq!(fixture.runtime.requests().len(), asked, "no request to a runtime");
        fixture.service.chat(&other, "hello").completion();

        // A refused request is recorded and not counted.
        let listed = fixture.listed();
        let used = if kind.starts_with("tokens") { 2 * TOKENS } else { 2 };
        assert_eq!((&listed["used"], &listed["left"]), (&json!(used), &json!(amount - used)));

        let needed = if kind.starts_with("tokens") { NEEDED } else { 1 };
        fixture.set(&fixture.of_key(), kind, used + needed);
        fixture.complete();
        fixture.service.chat(&fixture.key, "hello").expect_error("insufficient_permission");
        fixture.service.run_ok(&[&["limits", "remove"][..], &fixture.of_key(), &[kind]].concat());
        fixture.complete();
    }
}

/// Requests whose bodies arrive in two halves, so that their heads are checked long before they can start.
struct SlowRequests(Vec<(testbed::Connection, Vec<u8>)>);

impl SlowRequests {
    fn begin(service: &Service, key: &str, count: usize) -> Self {
        let request = Request::chat(key, chat_body("hello")).header("Expect", "100-continue");
        let begin = |_| {
            let (head, bytes) = (request.head(), request.bytes());
            let mut connection = service.connect();
            assert_eq!(connection.send(&head).response().status, 100, "the head is accepted");
            (connection, bytes[head.len()..].to_vec())
        };
        Self((0..count).map(begin).collect())
    }

    /// Sends the rest of all of them, and returns each response's status.
    fn finish(mut self) -> Vec<u16> {
        for (connection, body) in &mut self.0 {
            connection.send(&*body);
        }
        self.0.iter_mut().map(|(connection, _)| connection.response().status).collect()
    }
}

#[test]
fn a_budget_is_decided_when_a_request_can_start() {
    for (kind, amount) in [("requests-per-day", 1), ("tokens-per-day", NEEDED)] {
        let fixture = Fixture::new(Behaviour::Echo);
        fixture.set(&fixture.of_key(), kind, amount);
        let slow = SlowRequests::begin(&fixture.service, &fixture.key, 20);
        let mut statuses = slow.finish();
        statuses.sort_unstable();
        assert_eq!(statuses, [&[200][..], &[403; 19]].concat(), "{kind}");
        assert_eq!(fixture.runtime.requests().len(), 1);
    }
}

#[test]
fn requests_that_began_earlier_do_not_start_if_their_key_is_no_longer_accepted() {
    let fixture = Fixture::new(Behaviour::Echo);
    for (arguments, status) in [
        (&["keys", "set", "--completions", "off"][..], 403),
        (&["keys", "rotate", "--overlap", "0s"], 401),
        (&["keys", "revoke"], 401),
    ] {
        let key = fixture.service.key();
        let slow = SlowRequests::begin(&fixture.service, &key, 5);
        fixture.service.run_ok(&[arguments, &[public_id(&key)]].concat());
        assert_eq!(slow.finish(), [status; 5], "{arguments:?}");
    }
    assert_eq!(fixture.runtime.requests().len(), 0, "no request to a runtime");
    assert_eq!(fixture.service.rows().len(), 5, "requests with a valid key are recorded");
}

#[test]
fn requests_in_flight_count_against_a_budget() {
    let fixture = Fixture::new(Behaviour::EchoWhenReleased);
    fixture.set(&["--everyone"], "tokens-per-month", 2 * NEEDED);
    let request = Request::chat(&fixture.key, chat_body("hello")).bytes();
    let mut connections = [fixture.service.connect(), fixture.service.connect()];
    connections.iter_mut().for_each(|connection| {
        connection.send(&request);
    });
    fixture.runtime.wait_for_requests(2);
    let message = fixture.service.chat(&fixture.key, "hello").expect_error("insufficient_permission");
    assert!(message.contains("0 used, 1,050 reserved by requests in flight, 0 left"), "{message}");
    fixture.runtime.release();
    connections.iter_mut().for_each(|connection| drop(connection.response().completion()));
    fixture.runtime.set_behaviour(Behaviour::Echo);
    fixture.complete();
}

#[test]
fn the_limit_of_one_person_replaces_that_of_each_person() {
    let fixture = Fixture::new(Behaviour::Echo);
    let keys = ["ada", "bob"].map(|name| {
        Visitor::new(&fixture.service).join(&fixture.service, name, "developer");
        let key = fixture.service.key();
        fixture.service.run_ok(&["keys", "set", public_id(&key), "--owner", &format!("{name}@example.com")]);
        key
    });
    fixture.set(&["--each-person"], "requests-per-day", 2);
    fixture.set(&["--person", "bob@example.com"], "requests-per-day", 3);
    for (key, may) in [(&keys[0], 2), (&keys[1], 3)] {
        (0..may).for_each(|_| drop(fixture.service.chat(key, "hello").completion()));
        let message = fixture.service.chat(key, "hello").expect_error("insufficient_permission");
        assert!(message.starts_with(&format!("The key owner's budget of {may} requests per day")), "{message}");
    }
    // Keys without an owner belong to no person.
    (0..4).for_each(|_| fixture.complete());
}

#[test]
fn a_patient_key_gets_its_part_of_everyones_limits() {
    let fixture = Fixture::new(Behaviour::Echo);
    fixture.set(&["--everyone"], "requests-in-flight", 2);
    let patient = fixture.service.key();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let completed = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    fixture.service.chat(&fixture.key, "hello");
                }
            });
        }
        fixture.runtime.wait_for_requests(50);
        let completed = (0..12).filter(|_| fixture.service.chat(&patient, "hello").status == 200).count();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        completed
    });
    assert!(completed >= 10, "{completed} of 12");
}

#[test]
fn two_services_on_one_file_do_not_double_a_limit() {
    let mut fixture = Fixture::new(Behaviour::Echo);
    let second = ADRIATICUM.service_with(&[&fixture.runtime]).replica_of(&fixture.service).start();
    let unlimited = fixture.service.key();
    for kind in ["requests-per-day", "requests-per-minute"] {
        fixture.set(&fixture.of_key(), kind, 4);
    }
    let sent =
        (0..6).flat_map(|_| [&fixture.service, &second]).map(|service| service.chat(&fixture.key, "hello").status);
    assert_eq!(sent.filter(|status| *status == 200).count(), 4);
    second.chat(&unlimited, "hello").completion();
    // When the first one is gone, the second keeps the limits.
    fixture.service.kill();
    fixture.service.start_again();
    second.run_ok(&["limits", "set", "--key", public_id(&fixture.key), "requests-per-day", "5"]);
    second.run_ok(&["limits", "remove", "--key", public_id(&fixture.key), "requests-per-minute"]);
    let sent =
        (0..3).flat_map(|_| [&second, &fixture.service]).map(|service| service.chat(&fixture.key, "hello").status);
    assert_eq!(sent.filter(|status| *status == 200).count(), 1);
}

#[test]
fn earlier_use_counts_and_everyones_budget_is_shared() {
    let fixture = Fixture::new(Behaviour::Echo);
    let other = fixture.service.key();
    fixture.complete();
    fixture.set(&["--everyone"], "tokens-per-day", 2 * TOKENS + NEEDED);
    assert_eq!(fixture.listed()["used"], json!(TOKENS));
    fixture.service.chat(&other, "hello").completion();
    fixture.complete();
    for key in [&fixture.key, &other] {
        let message = fixture.service.chat(key, "hello").expect_error("insufficient_permission");
        assert!(message.starts_with("The service's budget of 539 tokens per day does not cover"), "{message}");
    }
    // Removed and set again: use in between counts, too.
    fixture.service.run_ok(&["limits", "remove", "--everyone", "tokens-per-day"]);
    fixture.complete();
    fixture.set(&["--everyone"], "tokens-per-day", 4 * TOKENS + NEEDED);
    assert_eq!(fixture.listed()["used"], json!(4 * TOKENS));
    fixture.complete();
    fixture.service.chat(&other, "hello").expect_error("insufficient_permission");
}

#[test]
fn a_budget_holds_after_a_kill() {
    let mut fixture = Fixture::new(Behaviour::Echo);
    fixture.set(&fixture.of_key(), "tokens-per-month", 2 * TOKENS + NEEDED);
    for _ in 0..3 {
        fixture.complete();
        fixture.service.kill();
        fixture.service.start_again();
    }
    fixture.service.chat(&fixture.key, "hello").expect_error("insufficient_permission");
    assert_eq!(fixture.listed()["used"], json!(3 * TOKENS));
}

#[test]
fn a_budget_renews_at_midnight() {
    if on_postgres() {
        return; // the server's clock counts there
    }
    let (runtime, clock) = (FakeRuntime::start(Behaviour::Echo), ShiftedClock::new(0));
    let service = ADRIATICUM.service_with(&[&runtime]).clock(&clock).start();
    let key = service.key();
    service.run_ok(&["limits", "set", "--key", public_id(&key), "requests-per-day", "1"]);
    service.chat(&key, "hello").completion();
    service.chat(&key, "hello").expect_error("insufficient_permission");
    clock.set_days(1);
    service.chat(&key, "hello").completion();
    service.chat(&key, "hello").expect_error("insufficient_permission");
}

#[test]
fn tokens_that_no_runtime_measured_are_not_counted_and_shown_as_such() {
    let fixture = Fixture::new(Behaviour::completion("x", "stop", None));
    fixture.set(&fixture.of_key(), "tokens-per-day", NEEDED);
    fixture.complete();
    fixture.complete();
    // Nor are tokens of a request whose caller hung up after a runtime had begun.
    fixture.runtime.set_behaviour(Behaviour::Hang);
    let mut connection = fixture.service.connect();
    connection.send(Request::chat(&fixture.key, chat_body("hello")).bytes());
    fixture.runtime.wait_for_requests(3);
    drop(connection);
    fixture.service.wait_for_rows(3);
    let listed = fixture.listed();
    assert_eq!((&listed["used"], &listed["unmeasured_requests"]), (&json!(0), &json!(3)));
    // Summed up again from the ledger.
    fixture.service.run_ok(&[&["limits", "remove"][..], &fixture.of_key(), &["tokens-per-day"]].concat());
    fixture.set(&fixture.of_key(), "tokens-per-day", NEEDED);
    assert_eq!(fixture.listed()["unmeasured_requests"], json!(3));
}

#[test]
fn a_hang_up_uses_a_request_and_a_failure_does_not() {
    let fixture = Fixture::new(Behaviour::Respond(500, "{}".into()));
    fixture.set(&fixture.of_key(), "requests-per-day", 1);
    fixture.service.chat(&fixture.key, "hello").expect_error("inference_error");
    fixture.runtime.set_behaviour(Behaviour::Hang);
    let asked = fixture.runtime.requests().len();
    let mut connection = fixture.service.connect();
    connection.send(Request::chat(&fixture.key, chat_body("hello")).bytes());
    fixture.runtime.wait_for_requests(asked + 1);
    drop(connection);
    fixture.service.wait_for_rows(2);
    fixture.service.chat(&fixture.key, "hello").expect_error("insufficient_permission");
}

#[test]
fn a_rate_is_a_503_that_says_when_to_try_again() {
    let fixture = Fixture::new(Behaviour::Echo);
    fixture.set(&fixture.of_key(), "requests-per-minute", 3);
    (0..3).for_each(|_| fixture.complete());
    let refused = fixture.service.chat(&fixture.key, "hello");
    assert_eq!(refused.status, 503);
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&seconds), "{seconds}");
    assert_eq!(refused.header("x-should-retry"), Some("true"));
    let message = refused.expect_error("service_unavailable");
    assert!(
        message.starts_with("The key's limit of 3 requests per minute is reached. Please try again in "),
        "{message}"
    );
    // It was refused before any work was done. Other keys are not refused.
    assert_eq!(fixture.runtime.requests().len(), 3);
    fixture.service.chat(&fixture.service.key(), "hello").completion();
}

#[test]
fn requests_in_flight_are_limited_and_free_again_when_they_end() {
    let fixture = Fixture::new(Behaviour::EchoWhenReleased);
    fixture.set(&fixture.of_key(), "requests-in-flight", 2);
    let request = Request::chat(&fixture.key, chat_body("hello")).bytes();
    let mut connections = [fixture.service.connect(), fixture.service.connect()];
    connections.iter_mut().for_each(|connection| {
        connection.send(&request);
    });
    fixture.runtime.wait_for_requests(2);
    let refused = fixture.service.chat(&fixture.key, "hello");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let message = refused.expect_error("service_unavailable");
    assert!(message.starts_with("The key's limit of 2 requests in flight is reached."), "{message}");
    // One hangs up, the other ends: both slots are free again.
    let [mut stays, leaves] = connections;
    drop(leaves);
    fixture.runtime.wait_for_disconnects(1);
    fixture.runtime.set_behaviour(Behaviour::Echo);
    ADRIATICUM.wait_for("a free slot", || (fixture.service.chat(&fixture.key, "hello").status == 200).then_some(()));
    fixture.runtime.release();
    stays.response().completion();
    (0..5).for_each(|_| fixture.complete());
}

#[test]
fn a_request_that_was_refused_has_not_used_up_a_rate() {
    let fixture = Fixture::new(Behaviour::EchoWhenReleased);
    fixture.set(&fixture.of_key(), "requests-per-minute", 2);
    fixture.set(&["--everyone"], "requests-in-flight", 1);
    let mut first = fixture.service.connect();
    first.send(Request::chat(&fixture.key, chat_body("hello")).bytes());
    fixture.runtime.wait_for_requests(1);
    for _ in 0..4 {
        let message = fixture.service.chat(&fixture.key, "hello").expect_error("service_unavailable");
        assert!(message.contains("1 request in flight is reached"), "{message}");
    }
    fixture.runtime.set_behaviour(Behaviour::Echo);
    fixture.runtime.release();
    first.response().completion();
    ADRIATICUM.wait_for("a free slot", || (fixture.service.chat(&fixture.key, "hello").status == 200).then_some(()));
    let message = fixture.service.chat(&fixture.key, "hello").expect_error("service_unavailable");
    assert!(message.contains("2 requests per minute is reached."), "{message}");
}

#[test]
fn bad_limits_are_refused_with_a_sentence() {
    let service = ADRIATICUM.service().start();
    for (arguments, says) in [
        (&["--key", "aaaaaaaaaaaa", "tokens-per-day", "5"][..], "there is no such key"),
        (&["--person", "nobody@example.org", "tokens-per-day", "5"], "there is no account nobody@example.org"),
        (&["--everyone", "tokens-per-week", "5"], "the limits are tokens-per-day, tokens-per-month"),
        (&["--everyone", "tokens-per-day", "-1"], "-1"),
        (&["--everyone", "tokens-per-day", "2.5"], "a whole number"),
        (&["--everyone", "tokens-per-day", "99999999999999999999"], "99999999999999999999"),
        (&["tokens-per-day", "5"], "--everyone"),
        (&["--everyone", "--key", "aaaaaaaaaaaa", "tokens-per-day", "5"], "cannot be used with"),
    ] {
        let output = service.run(&[&["limits", "set"], arguments].concat());
        assert_ne!(output.code, Some(0), "{arguments:?}");
        assert!(output.stderr.contains(says), "{arguments:?}: {}", output.stderr);
    }
    let removed = service.run(&["limits", "remove", "--everyone", "tokens-per-day"]);
    assert!(removed.code != Some(0) && removed.stderr.contains("there is no such limit"), "{removed:?}");
    assert!(service.run_ok(&["limits", "list"]).contains("There are no limits"));
}

#[test]
fn a_webhook_is_notified_once_at_80_and_at_100_percent_with_retries_until_it_accepts() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let receiver = FakeRuntime::start(Behaviour::Respond(500, "{}".into()));
    let service = ADRIATICUM
        .service_with(&[&runtime])
        .set("webhook.url", &format!("{}/chat/completions", receiver.url()))
        .set("webhook.key", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        .start();
    let key = service.key_with("the bot", &["--expires", "3d"]);
    service.run_ok(&["limits", "set", "--key", public_id(&key), "requests-per-month", "5"]);
    (0..4).for_each(|_| drop(service.chat(&key, "hello").completion()));
    // A refused notice is sent again.
    receiver.wait_for_requests(1);
    receiver.set_behaviour(Behaviour::Respond(200, "{}".into()));
    ADRIATICUM.wait_for("80 %", || accepted(&service).filter(|count| *count >= 1.0));
    service.chat(&key, "hello").completion();
    service.chat(&key, "hello").expect_error("insufficient_permission");
    ADRIATICUM.wait_for("all notices", || accepted(&service).filter(|count| *count >= 2.0));
    let events = receiver.requests();
    let budgets: Vec<_> = events.iter().filter(|event| event["type"] == "budget.reached").collect();
    let percents: Vec<_> = budgets.iter().map(|event| event["data"]["percent"].as_u64().unwrap()).collect();
    assert!(percents.contains(&80) && percents.last() == Some(&100), "{percents:?}");
    let last = &budgets.last().unwrap()["data"];
    assert_eq!((&last["name"], &last["scope"], &last["used"]), (&json!("the bot"), &json!("key"), &json!(5)));
    assert!(service.metric("adriaticum_budgets_reached{threshold=\"1\"}").is_some_and(|count| count >= 1.0));
    for head in receiver.heads() {
        for header in ["webhook-id: ", "webhook-timestamp: ", "webhook-signature: v1,"] {
            assert!(head.contains(header), "{head}");
        }
    }
}

#[test]
fn an_administrator_tries_the_webhook_if_there_is_one() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let receiver = FakeRuntime::start(Behaviour::Respond(200, "{}".into()));
    let without = ADRIATICUM.service_with(&[&runtime]).start();
    let with = ADRIATICUM
        .service_with(&[&runtime])
        .set("webhook.url", &format!("{}/chat/completions", receiver.url()))
        .set("webhook.key", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        .start();
    let status = |service: &Service, name: &str, role: &str| {
        let (visitor, token) = Visitor::new(service).join(service, name, role).with_form("/limits");
        visitor.send("POST", "/limits/test-notification", &format!("token={token}")).status
    };
    assert_eq!(status(&without, "Ada", "admin"), 404);
    assert_eq!(status(&with, "Ada", "admin"), 303);
    receiver.wait_for_requests(1);
    let event = &receiver.requests()[0];
    assert_eq!((&event["type"], &event["data"]["requested_by"]), (&json!("test"), &json!("ada@example.com")));
}

fn accepted(service: &Service) -> Option<f64> {
    service.metric("adriaticum_webhook_deliveries_total{outcome=\"delivered\"}")
}

#[test]
fn a_webhook_without_a_key_is_refused_at_the_start() {
    let mut installation = ADRIATICUM.install();
    installation.set("webhook.url", "http://127.0.0.1:9/");
    let output = installation.run(&["serve"]);
    assert!(output.code != Some(0) && output.stderr.contains("`webhook.key` is not"), "{output:?}");
}
