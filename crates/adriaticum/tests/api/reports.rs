//! Usage reports: projects of keys, prices, groups, ranges and filters, on the command line and in exports.

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime, Service};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

fn service() -> (Service, FakeRuntime) {
    let usage = json!({ "prompt_tokens": 500_000, "completion_tokens": 250_000, "total_tokens": 750_000 });
    let runtime = FakeRuntime::start(Behaviour::completion("x", "stop", Some(usage)));
    (ADRIATICUM.service_with(&[&runtime]).start(), runtime)
}

/// The public id of a key.
fn id(key: &str) -> &str {
    &key["adria_".len()..][..12]
}

fn json_of(service: &Service, arguments: &[&str]) -> Value {
    serde_json::from_str(&service.run_ok(arguments)).unwrap()
}

/// The current month in UTC.
fn this_month(service: &Service) -> String {
    service.rows()[0]["received_at"].as_str().unwrap()[..7].to_owned()
}

#[test]
fn a_key_has_a_project_that_can_be_changed_and_is_listed() {
    let (service, _runtime) = service();
    let key = service.key_with("bot", &["--project", "  Search  "]);
    let project = || json_of(&service, &["keys", "list", "--json"])[0]["project"].clone();
    assert_eq!(project(), "Search");
    assert!(service.run_ok(&["keys", "list"]).contains("Search"));
    service.run_ok(&["keys", "set", id(&key), "--project", "Suche nach Öl"]);
    assert_eq!(project(), "Suche nach Öl");
    service.run_ok(&["keys", "set", id(&key), "--project", "none"]);
    assert_eq!(project(), Value::Null);
    for wrong in ["", " ", "a\tb", &"x".repeat(61)] {
        let output = service.run(&["keys", "set", id(&key), "--project", wrong]);
        assert!(output.code != Some(0) && output.stderr.contains("1 to 60 printable characters"), "{output:?}");
    }
}

/// Ada's key of the project search, Bob's key without a project, and a key without an owner; each is used.
fn team(service: &Service, runtime: &FakeRuntime) -> (Visitor, Visitor, [String; 3]) {
    let ada = Visitor::new(service).join(service, "Ada", "admin");
    let bob = Visitor::new(service).join(service, "Bob", "developer");
    let keys = ["search", "=1+1", "cli"].map(|name| service.key_with(name, &[]));
    service.run_ok(&["keys", "set", id(&keys[0]), "--owner", "ada@example.com", "--project", "search"]);
    service.run_ok(&["keys", "set", id(&keys[1]), "--owner", "bob@example.com"]);
    for (key, count) in keys.iter().zip([3, 2, 1]) {
        (0..count).for_each(|_| drop(service.chat(key, "hello").completion()));
    }
    let measured = json!({ "prompt_tokens": 500_000, "completion_tokens": 250_000, "total_tokens": 750_000 });
    runtime.set_behaviour(Behaviour::completion("x", "stop", None));
    service.chat(&keys[1], "unmeasured").completion();
    runtime.set_behaviour(Behaviour::Respond(500, String::new()));
    service.chat(&keys[0], "fails").expect_error("inference_error");
    runtime.set_behaviour(Behaviour::completion("x", "stop", Some(measured)));
    (ada, bob, keys)
}

#[test]
fn a_monthly_report_has_a_line_with_the_cost_of_each_person() {
    let (service, runtime) = service();
    let (.., keys) = team(&service, &runtime);
    let month = this_month(&service);
    let report = |by: &str| service.run_ok(&["usage", "--month", &month, "--by", by, "--csv"]);
    let figures = "prompt_tokens,prompt_tokens_measured,completion_tokens,completion_tokens_measured,total_tokens,total_tokens_measured";
    assert_eq!(
        report("person"),
        format!(
            "person,name,requests,failed,{figures}\n\
             ada@example.com,Ada,4,1,1500000,3,750000,3,2250000,3\n\
             bob@example.com,Bob,3,0,1000000,2,500000,2,1500000,2\n\
             ,No one,1,0,500000,1,250000,1,750000,1\n\
             all,,8,1,3000000,6,1500000,6,4500000,6\n"
        )
    );

    service.run_ok(&["prices", "set", "--default", "--prompt", "1", "--completion", "2", "--currency", "EUR"]);
    service.run_ok(&["prices", "set", "--project", "search", "--prompt", "0.20", "--completion", "0.80"]);
    // 3 × (0.5 × 0.20 + 0.25 × 0.80), and 1 for each other measured request.
    let costs = |by: &str| {
        let lines: Vec<String> = report(by).lines().skip(1).map(str::to_owned).collect();
        let cost = |line: &String| line.rsplit(',').nth(2).unwrap().to_owned();
        lines.iter().map(cost).collect::<Vec<_>>()
    };
    assert_eq!(costs("person"), ["0.90", "2.00", "1.00", "3.90"]);
    assert_eq!(costs("project"), ["3.00", "0.90", "3.90"]);
    assert_eq!(costs("key"), ["0.90", "2.00", "1.00", "3.90"]);
    assert_eq!(costs("day"), ["3.90", "3.90"]);
    assert!(report("key").contains(&format!("{},'=1+1,3", id(&keys[1]))), "names are not formulas");
    assert!(report("person").lines().nth(1).unwrap().ends_with(",0.90,EUR,3"));

    let by_person = json_of(&service, &["usage", "--month", &month, "--by", "person", "--json"]);
    assert_eq!((&by_person["currency"], &by_person["all"]["cost"]), (&"EUR".into(), &"3.90".into()));
    assert_eq!(by_person["groups"][2]["person"], Value::Null);
    assert_eq!(by_person["groups"][1]["total_tokens_measured"], 2);
    let table = service.run_ok(&["usage", "--by", "project"]);
    for part in ["search", "No project", "0.9000 EUR", "computed from today's prices, not billed", "6 of 8 requests"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    // Without these flags the output is the same, with or without prices.
    let plain = service.run_ok(&["usage", "--csv"]);
    assert!(plain.starts_with("group,name,requests,prompt_tokens") && !plain.contains("EUR"), "{plain}");
}

#[test]
fn prices_are_exact_in_one_currency_and_removed_by_name() {
    let (service, _runtime) = service();
    assert!(service.run_ok(&["prices", "list"]).contains("no prices"));
    for (arguments, says) in [
        (&["--default", "--prompt", "1", "--completion", "1"][..], "needs a currency"),
        (&["--prompt", "1", "--completion", "1"], "--project"),
        (&["--default", "--prompt", "-1", "--completion", "1"], "--prompt"),
        (&["--default", "--prompt", "0.1234567", "--completion", "1"], "at most 6 decimals"),
        (&["--default", "--prompt", "1", "--completion", "1", "--currency", "euros"], "three letters"),
    ] {
        let output = service.run(&[&["prices", "set"], arguments].concat());
        assert!(output.code != Some(0) && output.stderr.contains(says), "{arguments:?}: {output:?}");
    }
    service.run_ok(&["prices", "set", "--default", "--prompt", "0.000001", "--completion", "12", "--currency", "eur"]);
    let other =
        service.run(&["prices", "set", "--project", "a", "--prompt", "1", "--completion", "1", "--currency", "USD"]);
    assert!(other.stderr.contains("prices are in EUR"), "{other:?}");
    let listed = json_of(&service, &["prices", "list", "--json"]);
    let price = json!({ "project": null, "prompt": "0.000001", "completion": "12.00", "currency": "EUR" });
    assert_eq!(listed, json!([price]));
    service.run_ok(&["prices", "remove", "--default"]);
    let again = service.run(&["prices", "remove", "--default"]);
    assert!(again.code != Some(0) && again.stderr.contains("no such price"), "{again:?}");
}

#[test]
fn ranges_are_exact_to_the_second_and_wrong_ones_are_explained() {
    let (service, _runtime) = service();
    let key = service.key();
    service.chat(&key, "hello").completion();
    let received = service.rows()[0]["received_at"].as_str().unwrap()[..19].to_owned();
    let requests = |from: &str, to: &str| {
        let counted = json_of(&service, &["usage", "--from", from, "--to", to, "--by", "key", "--json"]);
        let listed = json_of(&service, &["usage", "--requests", "--from", from, "--to", to, "--json"]);
        let counted = counted["all"]["requests"].as_u64().unwrap();
        assert_eq!(listed.as_array().unwrap().len() as u64, counted, "{from} {to}");
        counted
    };
    assert_eq!(requests("2020-01-01", &received), 0);
    assert_eq!(requests(&received, "2999-01-01T00:00:00Z"), 1);
    assert_eq!(json_of(&service, &["usage", "--from", &received, "--json"])["requests"], 1);
    for (arguments, says) in [
        (&["--from", "2999-01-01"][..], "begins in the future"),
        (&["--from", "2026-01-02", "--to", "2026-01-01"], "ends before it begins"),
        (&["--from", "yesterday"], "a time in UTC"),
        (&["--to", "2026-01-01"], "--from"),
        (&["--month", "2026-13"], "a month"),
        (&["--month", "2026-11", "--since", "7d"], "cannot be used with"),
        (&["--by", "colour"], "key, person, project or day"),
        (&["--by", "key", "--requests"], "cannot be used with"),
    ] {
        let output = service.run(&[&["usage"], arguments].concat());
        assert!(output.code != Some(0) && output.stderr.contains(says), "{arguments:?}: {output:?}");
    }
}

#[test]
fn requests_are_filtered_by_status_key_person_and_latency() {
    let (service, runtime) = service();
    let (ada, bob, keys) = team(&service, &runtime);
    let found = |arguments: &[&str]| {
        let rows = json_of(&service, &[&["usage", "--requests", "--json"], arguments].concat());
        rows.as_array().unwrap().len()
    };
    for (arguments, count) in [
        (&[][..], 8),
        (&["--status", "failed"], 1),
        (&["--status", "200", "--key", id(&keys[1])], 3),
        (&["--person", "ada@example.com"], 4),
        (&["--person", "ada@example.com", "--status", "502"], 1),
        (&["--person", "bob@example.com", "--limit", "2"], 2),
        (&["--slower-than", "1h"], 0),
        (&["--slower-than", "1us"], 8),
    ] {
        assert_eq!(found(arguments), count, "{arguments:?}");
    }
    let csv = |visitor: &Visitor, query: &str| {
        let response = visitor.send("GET", &format!("/requests.csv?{query}"), "");
        assert_eq!(response.status, 200, "{response:?}");
        String::from_utf8(response.body).unwrap().lines().count() - 1
    };
    let account = |name: &str| {
        let accounts = json_of(&service, &["accounts", "list", "--json"]);
        let found = accounts.as_array().unwrap().iter().find(|account| account["name"] == name).unwrap().clone();
        found["id"].as_str().unwrap().to_owned()
    };
    assert_eq!(csv(&ada, ""), 8);
    assert_eq!(csv(&ada, "status=failed"), 1);
    assert_eq!(csv(&ada, &format!("person={}", account("Bob"))), 3);
    assert_eq!(csv(&ada, "slower=3600000"), 0);
    assert_eq!(csv(&ada, "from=2020-01-01T00:00&to=2020-01-02T00:00"), 0);
    assert_eq!(csv(&ada, &format!("key=adria_{}", id(&keys[2]))), 1);
    assert_eq!(csv(&bob, ""), 3, "only own requests");
    assert_eq!(csv(&bob, &format!("person={}", account("Ada"))), 3, "other people cannot be selected");
    for wrong in
        ["from=soon", "to=later", "from=2026-01-02&to=2026-01-01", "key=short", "status=bad", "slower=-1", "person=x"]
    {
        for page in ["requests", "requests.csv"] {
            assert_eq!(ada.send("GET", &format!("/{page}?{wrong}"), "").status, 400, "{page} {wrong}");
        }
    }
}

#[test]
fn everything_that_a_filter_matches_is_exported_as_csv_and_json() {
    let (service, runtime) = service();
    let (ada, bob, keys) = team(&service, &runtime);
    // More than one batch.
    let mut connection = service.connect();
    let request = testbed::Request::chat(&keys[2], testbed::chat_body("hello"));
    for _ in 0..1_050 {
        connection.send(request.bytes()).response().completion();
    }
    let json = |visitor: &Visitor, target: &str| {
        let response = visitor.send("GET", target, "");
        assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")), "{target}");
        serde_json::from_slice::<Value>(&response.body).unwrap_or_else(|error| panic!("{target}: {error}"))
    };
    let rows = json(&ada, "/requests.json");
    assert_eq!(rows.as_array().unwrap().len(), 1_058);
    let ids: std::collections::HashSet<_> =
        rows.as_array().unwrap().iter().map(|row| row["request_id"].clone()).collect();
    assert_eq!(ids.len(), 1_058);
    assert_eq!(json(&ada, "/requests.json?status=413"), json!([]));
    let named = json(&ada, &format!("/requests.json?key={}", id(&keys[1])));
    assert_eq!(named[0]["key_name"], "=1+1", "JSON is for programs");
    assert_eq!((&named[0]["finish_reason"], &named[0]["runtime"]), (&json!("stop"), &json!(runtime.url())));
    let own = json(&bob, "/requests.json");
    assert_eq!((&own[0]["finish_reason"], &own[0]["runtime"]), (&json!("stop"), &Value::Null));

    let usage = json(&ada, "/usage.json?range=24h&group=project");
    assert_eq!(usage["all"]["requests"], 1_058);
    assert_eq!(usage["groups"][1]["project"], "search");
    let people = json(&ada, "/usage.json?range=24h&group=person");
    let command = json_of(&service, &["usage", "--since", "24h", "--by", "person", "--json"]);
    assert_eq!(people["groups"], command["groups"], "page and command agree");
    let failed = json_of(&service, &["usage", "--since", "24h", "--json"])["failed_latency_us"].clone();
    assert!(failed["inference"]["p50"].is_u64(), "{failed}");
    assert_eq!(json(&bob, "/usage.json?range=24h&group=key")["all"]["requests"], 3);
    assert_eq!(ada.send("GET", "/usage.csv?range=custom&from=2026-02-02&to=2026-01-01", "").status, 400);

    let audit = json(&ada, "/audit.json?action=created+key");
    assert_eq!(audit.as_array().unwrap().len(), 3);
    assert!(audit.as_array().unwrap().iter().all(|line| line["actor"] == "operator"), "{audit}");
    assert_eq!(json(&ada, "/audit.json?actor=nobody"), json!([]));
    let csv = ada.page("/audit.csv?subject=1%2B1");
    let columns = "number,at,actor,action,subject_kind,subject_id,subject,details,sentence,address\n";
    assert!(csv.starts_with(columns) && csv.contains(",'=1+1,") && csv.contains(",created key =1+1,"), "{csv}");
    for target in ["/audit.csv", "/audit.json", "/audit", "/prices"] {
        assert_eq!(bob.send("GET", target, "").status, 403, "{target}");
    }
    let (bob, token) = bob.with_form("/keys");
    let price = format!("token={token}&project=&prompt=1&completion=1&currency=EUR");
    assert_eq!(bob.send("POST", "/prices", &price).status, 403);
}
