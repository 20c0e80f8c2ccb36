//! The ledger: every request with a valid key, exactly once, as the `usage` command shows it.

use std::collections::HashMap;

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime, Request, Service, chat_body, wait_for};

use crate::ADRIATICUM;

const FIGURES: [&str; 3] = ["prompt_tokens", "completion_tokens", "total_tokens"];

/// A request's id and its expected row: status, code, and the three token counts.
type Expected = (String, Value);

/// Sends one request of every kind; returns the expected rows.
fn one_of_each(runtime: &FakeRuntime, service: &Service, keys: &[String; 2]) -> Vec<Expected> {
    let measured = json!({ "prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42 });
    let partly = json!({ "prompt_tokens": 5 });
    let overflow =
        r#"{"error":{"message":"too long","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}"#;
    let [key, weak] = keys;
    let good = Request::chat(key, chat_body("hello"));
    let cases = [
        (Behaviour::completion("x", "stop", Some(measured)), good.clone(), json!([200, null, 30, 12, 42])),
        (Behaviour::completion("x", "length", Some(partly)), good.clone(), json!([200, null, 5, null, null])),
        (Behaviour::completion("x", "stop", None), good.clone(), json!([200, null, null, null, null])),
        (Behaviour::Echo, good.clone().body("{"), json!([400, "invalid_request", null, null, null])),
        (Behaviour::Respond(400, overflow.into()), good.clone(), json!([400, "invalid_request", null, null, null])),
        (
            Behaviour::Echo,
            Request::chat(weak, chat_body("x")),
            json!([403, "insufficient_permission", null, null, null]),
        ),
        (Behaviour::Echo, good.clone().body(vec![b' '; 262_145]), json!([413, "payload_too_large", null, null, null])),
        (Behaviour::Respond(500, String::new()), good.clone(), json!([502, "inference_error", null, null, null])),
        (Behaviour::Echo, good.clone(), json!([200, null, 3, 4, 7])),
    ];
    let send = |(reply, request, mut expected): (Behaviour, Request, Value)| {
        runtime.set_behaviour(reply);
        let response = service.send(&request);
        assert_eq!(response.status, expected[0], "{response:?}");
        let id = response.header("x-request-id").unwrap().to_owned();
        expected.as_array_mut().unwrap().push(json!(request_key(&request)));
        (id, expected)
    };
    // Without a valid key there is no row.
    for unknown in [good.clone().without("Authorization"), good.clone().target("/"), good.clone().header("Host", "x")] {
        service.send(&unknown).error();
    }
    cases.map(send).into()
}

fn request_key(request: &Request) -> String {
    let head = String::from_utf8(request.head()).unwrap();
    head.split("Bearer adria_").nth(1).unwrap()[..12].to_owned()
}

#[test]
fn every_request_is_recorded_once_with_its_outcome() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let keys = [service.key(), service.key_with("weak", &["--without-completions"])];
    let expected = one_of_each(&runtime, &service, &keys);

    let rows = service.rows();
    let found: Vec<Expected> = rows
        .iter()
        .rev()
        .map(|row| {
            let mut columns = vec![row["status"].clone(), row["code"].clone()];
            columns.extend(FIGURES.map(|figure| row[figure].clone()));
            columns.push(row["key_id"].clone());
            (row["request_id"].as_str().unwrap().to_owned(), columns.into())
        })
        .collect();
    assert_eq!(found, expected);
    for row in &rows {
        let reached_a_runtime = ["200", "502"].contains(&row["status"].to_string().as_str());
        assert!(row["total_us"].as_u64().unwrap() > 0, "{row}");
        assert!(!reached_a_runtime || row["inference_us"].as_u64().unwrap() > 0, "{row}");
        assert!(row["status"] != 403 || row["inference_us"].is_null(), "{row}");
        assert!(row["received_at"].as_str().unwrap().ends_with('Z'), "{row}");
    }
}

#[test]
fn every_total_equals_the_sum_of_its_rows() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let keys = [service.key(), service.key_with("weak", &["--without-completions"])];
    (0..3).for_each(|_| drop(one_of_each(&runtime, &service, &keys)));

    let rows = service.rows();
    let sums = service.usage();
    assert_eq!(figures(&sums), summed_up(rows.iter()));
    let group = |list: &str, of_row: &dyn Fn(&Value) -> Value, of_group: &dyn Fn(&Value) -> Value| {
        let mut groups = HashMap::new();
        for row in &rows {
            groups.entry(of_row(row).to_string()).or_insert_with(Vec::new).push(row);
        }
        let listed = sums[list].as_array().unwrap();
        assert_eq!(listed.len(), groups.len(), "{sums}");
        for each in listed {
            assert_eq!(figures(each), summed_up(groups[&of_group(each).to_string()].iter().copied()), "{each}");
        }
    };
    group("by_outcome", &|row| json!([row["status"], row["code"]]), &|sum| json!([sum["status"], sum["code"]]));
    group("by_key", &|row| row["key_id"].clone(), &|sum| sum["key_id"].clone());

    let succeeded = |key: &Value| rows.iter().filter(|row| row["key_id"] == *key && row["status"] == 200).count();
    for key in sums["by_key"].as_array().unwrap() {
        assert_eq!(key["succeeded"], succeeded(&key["key_id"]), "{key}");
    }
}

#[test]
fn csv_and_table_show_the_same_numbers() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let keys = [service.key(), service.key_with("weak", &["--without-completions"])];
    let sent = one_of_each(&runtime, &service, &keys);

    let rows = service.rows();
    let lines = csv_lines(&service.run_ok(&["usage", "--requests", "--csv"]));
    assert_eq!(lines.len(), sent.len());
    for (line, row) in lines.iter().zip(&rows) {
        let columns = row.as_object().unwrap();
        assert_eq!(line.len(), columns.len());
        for (name, value) in columns.iter().filter(|(name, _)| *name != "persist_us") {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(line[name], if value.is_null() { "" } else { &shown }, "{name}");
        }
    }
    let sums = service.usage();
    let lines = csv_lines(&service.run_ok(&["usage", "--csv"]));
    let all = lines.iter().find(|line| line["group"] == "all").unwrap();
    for name in ["requests", "prompt_tokens", "prompt_tokens_measured", "total_tokens", "total_tokens_measured"] {
        assert_eq!(all[name], sums[name].to_string(), "{name}");
    }
    for group in ["outcome", "key"] {
        let requests = lines.iter().filter(|line| line["group"] == group).map(|line| line["requests"].parse::<usize>());
        assert_eq!(requests.map(Result::unwrap).sum::<usize>(), sent.len(), "{group}");
    }

    let table = service.run_ok(&["usage"]);
    for part in
        ["200 ok", "413 payload_too_large", "(2 of 9 measured)", request_key(&Request::chat(&keys[0], "")).as_str()]
    {
        assert!(table.contains(part), "without {part}:\n{table}");
    }
    let table = service.run_ok(&["usage", "--requests"]);
    sent.iter().for_each(|(id, _)| assert!(table.contains(id), "{table}"));
}

#[test]
fn rows_are_limited_and_the_newest_come_first() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let sent: Vec<_> = (0..6).map(|_| service.chat(&key, "hello").completion().id).collect();
    let ids = |options: &[&str]| -> Vec<String> {
        let output = service.run_ok(&[&["usage", "--requests", "--json"], options].concat());
        let rows: Vec<Value> = serde_json::from_str(&output).unwrap();
        rows.iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect()
    };
    let newest_first: Vec<_> = sent.iter().rev().cloned().collect();
    assert_eq!(ids(&["--limit", "4"]), newest_first[..4]);
    assert_eq!(ids(&[]), newest_first);
    assert_eq!(ids(&["--since", "1h"]), newest_first);
    assert_eq!(ids(&["--since", "1us"]).len(), 0);
}

#[test]
fn old_rows_are_pruned_and_their_totals_stay() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    (0..5).for_each(|_| drop(service.chat(&key, "hello").completion()));
    let before = figures(&service.usage());
    service.kill();
    service.set("ledger.retention", "1ms");
    service.start_again();
    wait_for("old rows to go", || service.rows().is_empty().then_some(()));
    assert_eq!(figures(&service.usage()), before);
    service.chat(&key, "hello").completion();
}

/// Requests, then the sum of each token count and the number of requests that measured it.
type Figures = Vec<Value>;

fn figures(sum: &Value) -> Figures {
    let each = FIGURES.iter().flat_map(|figure| [sum[*figure].clone(), sum[format!("{figure}_measured")].clone()]);
    std::iter::once(sum["requests"].clone()).chain(each).collect()
}

fn summed_up<'a>(rows: impl Iterator<Item = &'a Value>) -> Figures {
    let rows: Vec<_> = rows.collect();
    let mut sums = vec![json!(rows.len())];
    for figure in FIGURES {
        let measured: Vec<u64> = rows.iter().filter_map(|row| row[figure].as_u64()).collect();
        sums.push(if measured.is_empty() { Value::Null } else { json!(measured.iter().sum::<u64>()) });
        sums.push(json!(measured.len()));
    }
    sums
}

fn csv_lines(text: &str) -> Vec<HashMap<String, String>> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(Result::unwrap).collect()
}
