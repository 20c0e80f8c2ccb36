//! Resources and their fields, as in docs/openapi.json: the completion object, its usage, and the messages.
//!
//! The harness checks the exact members of completion and error in every test.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime, Request, chat_body};

use crate::ADRIATICUM;

#[test]
fn a_completion_is_exactly_the_object_of_the_specification() {
    let runtime = FakeRuntime::start(Behaviour::completion("Buon giorno. \"√\"\n", "stop", Some(usage(11, 5, 16))));
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();

    let before = unix_seconds();
    let response = service.chat(&key, "hello");
    let completed = response.completion();
    assert_eq!(completed.content, "Buon giorno. \"√\"\n");
    assert_eq!(completed.finish_reason, "stop");
    assert_eq!(completed.tokens, [Some(11), Some(5), Some(16)]);
    assert!((before..=unix_seconds()).contains(&completed.created), "{completed:?}");
    // Nothing from the runtime: neither its ids, nor its model's name, nor extra members.
    assert!(!String::from_utf8_lossy(&response.body).contains("cmpl-7"));
}

#[test]
fn ids_are_unique_and_grow_with_time() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let ids: Vec<_> = (0..20).map(|_| service.chat(&key, "hello").completion().id).collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    assert!(ids.is_sorted(), "{ids:?}");
}

#[test]
fn token_figures_are_those_of_the_runtime_or_null() {
    let runtime = FakeRuntime::start(Behaviour::Hang);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let cases: &[(Option<Value>, [Option<u64>; 3])] = &[
        (Some(usage(3, 4, 7)), [Some(3), Some(4), Some(7)]),
        (Some(usage(0, 0, 0)), [Some(0), Some(0), Some(0)]),
        // Passed on as measured, neither corrected nor added up.
        (Some(usage(3, 4, 100)), [Some(3), Some(4), Some(100)]),
        (Some(json!({ "prompt_tokens": 3, "completion_tokens": 4 })), [Some(3), Some(4), None]),
        (Some(json!({ "total_tokens": 7 })), [None, None, Some(7)]),
        (Some(json!({ "prompt_tokens": null, "completion_tokens": 4, "total_tokens": null })), [None, Some(4), None]),
        (Some(json!({ "prompt_tokens": "3", "completion_tokens": 4.5, "total_tokens": -7 })), [None, None, None]),
        (Some(json!({ "prompt_tokens": true, "completion_tokens": [4], "total_tokens": {} })), [None, None, None]),
        (Some(json!({})), [None, None, None]),
        (Some(json!([])), [None, None, None]),
        (Some(Value::Null), [None, None, None]),
        (None, [None, None, None]),
    ];
    for (usage, tokens) in cases {
        runtime.set_behaviour(Behaviour::completion("x", "stop", usage.clone()));
        assert_eq!(service.chat(&key, "hello").completion().tokens, *tokens, "{usage:?}");
    }
    // The ledger has the same counts.
    let rows = service.rows();
    for ((usage, tokens), row) in cases.iter().rev().zip(&rows) {
        let recorded = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| row[name].as_u64());
        assert_eq!(recorded, *tokens, "{usage:?} {row}");
    }
}

#[test]
fn a_finish_reason_is_stop_or_length() {
    let runtime = FakeRuntime::start(Behaviour::Hang);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    for runtime_says in ["stop", "length", "max_tokens", "eos_token", "abort", "content_filter", "tool_calls", ""] {
        let expected = if ["length", "max_tokens"].contains(&runtime_says) { "length" } else { "stop" };
        runtime.set_behaviour(Behaviour::completion("x", runtime_says, None));
        assert_eq!(service.chat(&key, "hello").completion().finish_reason, expected, "{runtime_says}");
    }
}

#[test]
fn any_text_survives_both_ways() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let texts = [
        "",
        " leading and trailing \n\t ",
        "\u{0}\u{1}\u{1f}\u{7f}\u{85}\u{2028}\u{2029}",
        "\"quotes\" \\ backslashes \\u0041 </script> <|im_start|>system",
        "ä ß ç 日本語 עברית 🏴‍☠️ e\u{301} \u{fffd} \u{ffff} \u{10ffff}",
        "\u{feff}BOM inside",
    ];
    for text in texts {
        assert_eq!(service.chat(&key, text).completion().content, text, "{text:?}");
    }
    // The runtime gets the same, except for text that looks like a control token (`runtime.guard`).
    let asked: Vec<_> = runtime.requests().iter().map(|request| request["messages"][0]["content"].clone()).collect();
    assert_eq!(asked, texts.map(|text| text.replace("<|im_start|>", "<\u{2060}|im_start|>")));
}

#[test]
fn every_role_is_passed_on_and_the_order_is_kept() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let messages = json!([
        { "role": "system", "content": "be brief" },
        { "role": "user", "content": "one" },
        { "role": "assistant", "content": "two" },
        { "content": "three", "role": "user" },
        { "role": "system", "content": "four" },
        { "role": "assistant", "content": "five" },
    ]);
    let body = json!({ "messages": messages, "model": "adriaticum" }).to_string();
    service.send(&Request::chat(&key, body)).completion();
    assert_eq!(runtime.requests()[0]["messages"], messages);
}

#[test]
fn message_text_is_neither_stored_nor_logged() {
    let (question, reply, hidden) = ("Quagga-4711", "Okapi-0815", "Takin-1234");
    let runtime = FakeRuntime::start(Behaviour::completion(reply, "stop", None));
    let service = ADRIATICUM.service_with(&[&runtime]).set("log", "trace").start();
    let key = service.key();
    service.chat(&key, question).completion();
    runtime.set_behaviour(Behaviour::Respond(500, format!("{{\"error\":\"{reply}\"}}")));
    service.chat(&key, question).expect_error("inference_error");
    let spoiled = chat_body(question).replace("user", hidden);
    service.send(&Request::chat(&key, spoiled)).expect_error("invalid_request");

    let mut kept = service.log();
    for entry in std::fs::read_dir(service.data()).unwrap() {
        kept.push_str(&String::from_utf8_lossy(&std::fs::read(entry.unwrap().path()).unwrap()));
    }
    assert!(kept.contains(&service.rows()[0]["key_id"].as_str().unwrap().to_owned()), "the database was read");
    for text in [question, reply, hidden, &key, key.split('_').nth(2).unwrap()] {
        assert!(!kept.contains(text), "{text} was kept");
    }
}

fn usage(prompt: u64, completion: u64, total: u64) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total })
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}
