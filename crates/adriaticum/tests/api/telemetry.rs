//! Telemetry of requests: metrics, one log line each, and traces.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testbed::{
    Behaviour, FakeRuntime, FakeSearch, Request, Service, chat_body, is_request_id, unreachable_url, wait_for,
};

use crate::ADRIATICUM;
use crate::collector::Collector;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const FACTUAL: &str = "How many inhabitants does the city of Split in Croatia have?";

/// All metrics: names with labels, and values.
fn figures(service: &Service) -> BTreeMap<String, f64> {
    let (status, text) = service.get_ops("/metrics");
    assert_eq!(status, 200);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.into(), value.parse().unwrap()))
        .collect()
}

/// The request lines of the log, once there are that many.
fn lines(service: &Service, count: usize) -> Vec<Value> {
    let lines = || -> Vec<Value> {
        let log = service.log();
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        let lines = whole.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == "request").collect()
    };
    let lines = wait_for("lines of the log", || Some(lines()).filter(|lines| lines.len() >= count));
    assert_eq!(lines.len(), count, "{lines:?}");
    lines
}

/// Sends one request for each outcome; returns their statuses and codes.
fn every_outcome(service: &Service, runtime: &FakeRuntime) -> Vec<(u16, &'static str)> {
    let (key, powerless) = (service.key(), service.key_with("powerless", &["--without-completions"]));
    service.chat(&key, "hello").completion();
    service.send(&Request::chat(&key, "{")).expect_error("invalid_request");
    service.chat("nobody", "hello").expect_error("invalid_api_key");
    service.chat(&powerless, "hello").expect_error("insufficient_permission");
    service.send(&Request::chat(&key, chat_body("hello")).target("/v1/other")).expect_error("not_found");
    service.send(&Request::chat(&key, " ".repeat(262_145))).expect_error("payload_too_large");
    runtime.set_behaviour(Behaviour::Respond(500, "{}".into()));
    service.chat(&key, "hello").expect_error("inference_error");
    runtime.set_behaviour(Behaviour::Hang);
    let asked = runtime.requests().len();
    let mut caller = service.connect();
    caller.send(Request::chat(&key, chat_body("hello")).bytes());
    runtime.wait_for_requests(asked + 1);
    drop(caller);
    runtime.wait_for_disconnects(1);
    vec![
        (200, ""),
        (400, "invalid_request"),
        (401, "invalid_api_key"),
        (403, "insufficient_permission"),
        (404, "not_found"),
        (413, "payload_too_large"),
        (499, "client_closed"),
        (502, "inference_error"),
    ]
}

#[test]
fn each_request_is_counted_once_by_outcome() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let ended = every_outcome(&service, &runtime);
    let figures = wait_for("the one that hung up", || {
        let figures = figures(&service);
        let closed = figures[r#"adriaticum_requests_total{status="499",code="client_closed"}"#];
        (closed == 1.0).then_some(figures)
    });
    for (status, code) in &ended {
        let code_is = |label: &str| if code.is_empty() { String::new() } else { format!(",{label}=\"{code}\"") };
        let counted = format!("adriaticum_requests_total{{status=\"{status}\"{}}}", code_is("code"));
        assert_eq!(figures[&counted], 1.0, "{counted}");
        let labels =
            r#"gen_ai_operation_name="chat",gen_ai_provider_name="adriaticum",gen_ai_request_model="adriaticum""#;
        let labels = format!("{{{labels}{}}}", code_is("error_type"));
        assert_eq!(figures[&format!("gen_ai_server_request_duration_seconds_count{labels}")], 1.0, "{labels}");
        let sum = figures[&format!("gen_ai_server_request_duration_seconds_sum{labels}")];
        assert!((1e-6..20.0).contains(&sum), "{labels}: {sum} s");
    }
    let all: f64 =
        figures.iter().filter(|(name, _)| name.starts_with("adriaticum_requests_total")).map(|(_, n)| n).sum();
    assert_eq!(all, ended.len() as f64);

    // All requests with a key were recorded; the one that disconnected did not wait for its commit.
    for (phase, count) in [("queue", 3.0), ("search", 0.0), ("inference", 3.0), ("persist", 5.0)] {
        let of = |figure: &str| figures[&format!("adriaticum_request_phase_seconds_{figure}{{phase=\"{phase}\"}}")];
        assert_eq!(of("count"), count, "{phase}");
        assert_eq!(of("sum") > 0.0, count > 0.0, "{phase}");
        let beyond = format!("adriaticum_request_phase_seconds_bucket{{le=\"+Inf\",phase=\"{phase}\"}}");
        assert_eq!(figures[&beyond], count, "{phase}");
    }
    let labels = |kind| {
        format!(
            r#"{{gen_ai_operation_name="chat",gen_ai_provider_name="adriaticum",gen_ai_request_model="adriaticum",gen_ai_token_type="{kind}"}}"#
        )
    };
    for (kind, tokens) in [("input", 3.0), ("output", 4.0)] {
        assert_eq!(figures[&format!("gen_ai_client_token_usage_sum{}", labels(kind))], tokens);
        assert_eq!(figures[&format!("gen_ai_client_token_usage_count{}", labels(kind))], 1.0);
    }
    // Six rows: every request with a valid key.
    assert_eq!(service.wait_for_rows(6).len(), 6);
    let figures = self::figures(&service);
    assert_eq!(figures["adriaticum_ledger_group_rows_sum"], 6.0);
    assert!((1.0..=6.0).contains(&figures["adriaticum_ledger_commit_seconds_count"]), "{figures:?}");
    assert!(figures["adriaticum_ledger_commit_seconds_sum"] > 0.0);
    for nothing in ["ledger_queue_rows", "ledger_commits_failed_total", "requests_not_recorded_total"] {
        assert_eq!(figures[&format!("adriaticum_{nothing}")], 0.0, "{nothing}");
    }
}

#[test]
fn tokens_that_were_not_measured_are_not_counted() {
    let runtime = FakeRuntime::start(Behaviour::completion("hi", "stop", Some(json!({ "prompt_tokens": 5 }))));
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    service.chat(&service.key(), "hello").completion();
    let counted = |kind: &str| {
        let figures = figures(&service);
        let name =
            figures.keys().find(|name| name.starts_with("gen_ai_client_token_usage_count") && name.contains(kind));
        figures[name.unwrap()]
    };
    assert_eq!((counted("input"), counted("output")), (1.0, 0.0));
}

#[test]
fn searches_are_counted_by_outcome() {
    let found = [json!({ "title": "Split", "url": "https://a.example/", "content": "160,577 inhabitants" })];
    let (runtime, search) = (FakeRuntime::start(Behaviour::Echo), FakeSearch::finding(&found));
    let service = ADRIATICUM.service_with(&[&runtime]).set("search.url", &search.url()).start();
    let key = service.key();
    service.chat(&key, FACTUAL).completion();
    service.chat(&key, "Write a short poem about the sea.").completion();
    search.set_results(&[]);
    service.chat(&key, FACTUAL).completion();
    search.set_behaviour(Behaviour::Respond(500, "{}".into()));
    service.chat(&key, FACTUAL).expect_error("search_unavailable");
    let figures = figures(&service);
    for outcome in ["found", "nothing", "failed"] {
        assert_eq!(figures[&format!("adriaticum_searches_total{{outcome=\"{outcome}\"}}")], 1.0, "{outcome}");
    }
    assert_eq!(figures[r#"adriaticum_request_phase_seconds_count{phase="search"}"#], 3.0);
}

#[test]
fn metrics_cover_the_process_and_our_own_engines() {
    let engine = FakeRuntime::start(Behaviour::Echo);
    let status = json!({
        "data": [{ "id": "small", "owned_by": "adriaticum" }],
        "model": "small", "context": 2048, "running": 3, "waiting": 1, "cells": 8192, "cells_used": 700, "cells_shared": 200,
        "tokenizing": 0, "threads": 2, "gpu_layers": 31, "gpu_memory": 8_000_000_000_u64, "steps": 10, "generating_steps": 8,
        "slow_generating_steps": 1, "step_tokens": 250, "decoding_seconds": 1.5, "sampling_seconds": 0.25,
        "prompt_tokens": 400, "shared_tokens": 100, "generated_tokens": 90, "cancelled": 2,
    });
    engine.set_health_behaviour(Behaviour::Respond(200, status.to_string()));
    let other = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&engine, &other]).start();
    let figures = figures(&service);
    for (name, value) in [
        ("requests_running", 3.0),
        ("requests_waiting", 1.0),
        ("cells", 8192.0),
        ("cells_used", 700.0),
        ("cells_shared", 200.0),
        ("threads", 2.0),
        ("gpu_layers", 31.0),
        ("gpu_memory_bytes", 8e9),
        ("decoding_seconds_total", 1.5),
        ("sampling_seconds_total", 0.25),
        ("steps_total", 10.0),
        ("generating_steps_total", 8.0),
        ("slow_generating_steps_total", 1.0),
        ("step_tokens_total", 250.0),
        ("prompt_tokens_total", 400.0),
        ("prompt_tokens_cached_total", 100.0),
        ("generated_tokens_total", 90.0),
        ("requests_cancelled_total", 2.0),
    ] {
        let of = |runtime: &FakeRuntime| format!("adriaticum_engine_{name}{{runtime=\"{}\"}}", runtime.url());
        assert_eq!(figures.get(&of(&engine)), Some(&value), "{name}");
        assert_eq!(figures.get(&of(&other)), None, "it is not ours");
    }
    assert!(other.heads().iter().all(|head| !head.contains("/status")), "it gets no status request");
    for (name, at_least) in [
        ("process_resident_memory_bytes", 1e6),
        ("process_virtual_memory_bytes", 1e6),
        ("process_cpu_seconds_total", 0.0),
        ("process_open_fds", 5.0),
        ("process_max_fds", 5.0),
        ("process_threads", 3.0),
    ] {
        assert!(figures[name] >= at_least, "{name} {}", figures[name]);
    }
}

#[test]
fn the_log_has_one_line_per_request_without_message_text() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let response = service.chat(&key, "Quagga in a message").completion();
    let lines_of = |count| lines(&service, count);
    let line = &lines_of(1)[0];
    assert_eq!(
        (&line["request_id"], &line["status"], &line["level"]),
        (&json!(response.id), &json!(200), &json!("INFO"))
    );
    let public_id = key.split('_').nth(1).unwrap();
    assert_eq!((&line["key"], &line["runtime"]), (&json!(public_id), &json!(runtime.url())));
    assert_eq!((&line["prompt_tokens"], &line["completion_tokens"]), (&json!(3), &json!(4)));
    for time in ["queue_us", "inference_us", "persist_us", "total_us"] {
        assert!(line[time].as_u64().is_some_and(|time| time > 0), "{time}: {line}");
    }
    assert!(line.get("search_us").is_none() && line.get("code").is_none(), "{line}");

    let ended = every_outcome(&service, &runtime);
    let lines = lines_of(1 + ended.len());
    let mut logged: Vec<_> = lines[1..]
        .iter()
        .map(|line| (line["status"].as_u64().unwrap() as u16, line["code"].as_str().unwrap_or_default()))
        .collect();
    logged.sort_unstable();
    assert_eq!(logged, ended);
    assert!(lines.iter().all(|line| is_request_id(line["request_id"].as_str().unwrap())));
    let gone = lines.iter().find(|line| line["status"] == 499).unwrap();
    assert_eq!(gone["runtime"], json!(runtime.url()), "the runtime of a disconnected request is known");
    let log = service.log();
    for secret in ["Quagga", "hello", &key, &key[20..]] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[test]
fn request_logging_can_be_turned_off() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = ADRIATICUM.service_with(&[&runtime]).set("api.log_requests", "off").start();
    service.chat(&service.key(), "hello").completion();
    service.signal(rustix::process::Signal::TERM);
    service.wait_for_exit();
    let log = service.log();
    assert!(log.contains("stopped") && !log.contains(r#""message":"request""#), "{log}");
}

/// The values of a header in the last completion or search request.
fn passed_on(heads: &[String], name: &str) -> Vec<String> {
    let head = heads.iter().rfind(|head| head.contains("/chat/completions") || head.contains("/search")).unwrap();
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn a_callers_trace_is_passed_on_to_runtime_and_search() {
    let (runtime, search) = (FakeRuntime::start(Behaviour::Echo), FakeSearch::finding(&[]));
    let service = ADRIATICUM.service_with(&[&runtime]).set("search.url", &search.url()).start();
    let key = service.key();
    let request = Request::chat(&key, chat_body(FACTUAL));
    let good =
        request.clone().header("traceparent", PARENT).header("tracestate", "a=1").add_header("tracestate", "b=2");
    service.send(&good).completion();
    for heads in [runtime.heads(), search.heads()] {
        assert_eq!(passed_on(&heads, "traceparent"), [PARENT]);
        assert_eq!(passed_on(&heads, "tracestate"), ["a=1,b=2"]);
    }
    assert_eq!(lines(&service, 1)[0]["trace_id"], TRACE);
    for spoiled in [
        request.clone(),
        request.clone().header("traceparent", &PARENT.to_uppercase()).header("tracestate", "a=1"),
        request.clone().header("traceparent", PARENT).add_header("traceparent", PARENT),
        request.header("tracestate", "a=1"),
    ] {
        service.send(&spoiled).completion();
        for heads in [runtime.heads(), search.heads()] {
            assert_eq!(passed_on(&heads, "traceparent"), Vec::<String>::new(), "{spoiled:?}");
            assert_eq!(passed_on(&heads, "tracestate"), Vec::<String>::new(), "{spoiled:?}");
        }
    }
}

#[test]
fn a_collector_gets_the_spans_of_a_request_in_its_callers_trace() {
    let (runtime, search, collector) =
        (FakeRuntime::start(Behaviour::Echo), FakeSearch::finding(&[]), Collector::new());
    let setup =
        ADRIATICUM.service_with(&[&runtime]).set("search.url", &search.url()).set("otlp.endpoint", &collector.url());
    let mut service = setup.start();
    let key = service.key();
    let request = Request::chat(&key, chat_body(FACTUAL));
    let id = service.send(&request.clone().header("traceparent", PARENT).header("tracestate", "a=1")).completion().id;
    let (to_runtime, to_search) =
        (passed_on(&runtime.heads(), "traceparent"), passed_on(&search.heads(), "traceparent"));
    assert_eq!(passed_on(&runtime.heads(), "tracestate"), ["a=1"]);
    // The caller has not sampled this trace.
    service.send(&request.clone().header("traceparent", &PARENT.replace("-01", "-00"))).completion();
    assert!(passed_on(&runtime.heads(), "traceparent")[0].ends_with("-00"));
    service
        .send(&Request::chat("nobody", chat_body("x")).header("traceparent", PARENT))
        .expect_error("invalid_api_key");
    service.signal(rustix::process::Signal::TERM);
    service.wait_for_exit();

    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:?}");
    let whole =
        |id: &str| spans.iter().find(|span| span.attribute("gen_ai.response.id").as_deref() == Some(id)).unwrap();
    let root = whole(&id);
    assert_eq!((root.name.as_str(), root.parent.as_str()), ("chat adriaticum", "00f067aa0ba902b7"));
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "adriaticum"),
        ("gen_ai.usage.input_tokens", "3"),
        ("gen_ai.usage.output_tokens", "4"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(root.attribute(name).as_deref(), Some(value), "{root:?}");
    }
    let parts: Vec<_> = spans.iter().filter(|span| span.parent == root.id).collect();
    let names: Vec<_> = parts.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["authenticate", "search", "inference", "persist"]);
    assert_eq!(to_search, [format!("00-{TRACE}-{}-01", parts[1].id)], "Search continues from the span of the search");
    assert_eq!(to_runtime, [format!("00-{TRACE}-{}-01", parts[2].id)]);
    assert_eq!(parts[2].attribute("server.address"), Some(runtime.url()));

    let others: Vec<_> = spans.iter().filter(|span| span.id != root.id && span.parent != root.id).collect();
    let refused = others.iter().find(|span| span.name == "chat adriaticum").unwrap();
    assert_eq!(refused.attribute("error.type").as_deref(), Some("invalid_api_key"));
    assert_eq!(others.len(), 2, "the refused request and its authentication, none for the unsampled one: {others:?}");
    for secret in ["inhabitants", &key] {
        assert!(!collector.received(secret), "{secret} was sent to the collector");
    }
}

#[test]
fn traces_are_sampled_and_an_unreachable_collector_does_no_harm() {
    let (runtime, collector) = (FakeRuntime::start(Behaviour::Echo), Collector::new());
    let mut service =
        ADRIATICUM.service_with(&[&runtime]).set("otlp.endpoint", &collector.url()).set("otlp.sample", "0").start();
    service.chat(&service.key(), "hello").completion();
    service.signal(rustix::process::Signal::TERM);
    assert!(service.wait_for_exit().success());
    assert!(collector.spans().is_empty());

    let closed = unreachable_url().replace("/v1", "");
    let mut service = ADRIATICUM.service_with(&[&runtime]).set("otlp.endpoint", &closed).start();
    let key = service.key();
    (0..50).for_each(|_| drop(service.chat(&key, "hello").completion()));
    service.signal(rustix::process::Signal::TERM);
    assert!(service.wait_for_exit().success());
}
