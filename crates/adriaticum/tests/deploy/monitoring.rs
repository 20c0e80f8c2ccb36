//! Dashboard and alerts query metrics and labels that a running service has, and docs/metrics.md lists them all.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::{Value, json};
use testbed::{Behaviour, CertificateAuthority, FakeRuntime};

use crate::ADRIATICUM;
use crate::folder::deploy;

/// Every expression in a document, at any depth.
fn expressions(document: &Value, into: &mut Vec<String>) {
    match document {
        Value::Object(members) => members.iter().for_each(|(name, value)| match (name.as_str(), value) {
            ("expr", Value::String(text)) => into.push(text.clone()),
            (_, value) => expressions(value, into),
        }),
        Value::Array(list) => list.iter().for_each(|value| expressions(value, into)),
        _ => {}
    }
}

/// The metrics of a service that has served a request from a runtime that reports itself as our engine.
fn engine_metrics() -> String {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let status = json!({
        "data": [{ "id": "small", "owned_by": "adriaticum" }],
        "model": "small", "context": 2048, "running": 0, "waiting": 0, "cells": 1, "cells_used": 0, "cells_shared": 0,
        "tokenizing": 0, "threads": 1, "gpu_layers": 0, "gpu_memory": 0, "generating_steps": 0,
        "slow_generating_steps": 0, "decoding_seconds": 0.0, "sampling_seconds": 0.0, "steps": 0, "step_tokens": 0,
        "prompt_tokens": 0, "shared_tokens": 0, "generated_tokens": 0, "cancelled": 0,
    });
    runtime.set_health_behaviour(Behaviour::Respond(200, status.to_string()));
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    service.chat(&key, "hello").completion();
    service.chat("nobody", "hello").expect_error("invalid_api_key");
    service.get_ops("/metrics").1 + &tls_metrics()
}

/// The metrics of a service with TLS.
fn tls_metrics() -> String {
    let authority = CertificateAuthority::generate();
    let (pair, _) = authority.issue("one", &["localhost"]);
    let service = ADRIATICUM
        .service()
        .set("tls.certificate", pair.certificate.to_str().unwrap())
        .set("tls.key", pair.key.to_str().unwrap())
        .set("api.base_url", "https://localhost/v1")
        .set("console.base_url", "https://console.localhost")
        .start();
    service.get_ops("/metrics").1
}

#[test]
fn every_metric_in_dashboards_and_alerts_exists() {
    let exported = engine_metrics();
    let read = |path: &str| std::fs::read_to_string(deploy().join(path)).unwrap();
    let dashboard: Value = serde_json::from_str(&read("grafana/adriaticum.json")).unwrap();
    let rules: Value = serde_saphyr::from_str(&read("prometheus/adriaticum.rules.yaml")).unwrap();
    let (groups, selector) = (
        Regex::new(r"\bby \([^)]*\)").unwrap(),
        Regex::new(r"\b((?:adriaticum|gen_ai|process)_\w+)(?:\{([^}]*)\})?").unwrap(),
    );
    let label = Regex::new(r"(\w+)\s*(?:=~|!~|!=|=)").unwrap();
    for (document, at_least) in [(dashboard, 30), (rules, 15)] {
        let mut asked = Vec::new();
        expressions(&document, &mut asked);
        let mut names = BTreeSet::new();
        for expression in &asked {
            for found in selector.captures_iter(&groups.replace_all(expression, "")) {
                let name = &found[1];
                let samples: Vec<_> = exported
                    .lines()
                    .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
                    .collect();
                assert!(!samples.is_empty(), "no metric is named {name}: {expression}");
                let labels = found.get(2).map_or("", |labels| labels.as_str());
                for label in label.captures_iter(labels).map(|label| label[1].to_owned()) {
                    // These two are added by Prometheus.
                    let known = ["job", "instance"].contains(&label.as_str());
                    let label_is = |line: &&str| line.contains(&format!("{label}=\""));
                    assert!(known || samples.iter().any(label_is), "{name} has no {label}: {expression}");
                }
                names.insert(name.to_owned());
            }
        }
        assert!(names.len() >= at_least, "too few metrics are found: {names:?}");
    }
}

const INTRODUCTION: &str = "\
# Metrics

<!-- Generated from a running service by `make docs`; a test compares. Do not edit by hand. -->

`/metrics` on `ops.listen` has them in OpenMetrics text. [In production](production.md) says which to watch.
Names that begin with `gen_ai_` are OpenTelemetry's for language models, with its labels. Buckets and sums are per
replica: use `sum by (le)` before `histogram_quantile`. [deploy/grafana](../deploy/grafana/adriaticum.json) is a
dashboard, [deploy/prometheus](../deploy/prometheus/adriaticum.rules.yaml) has alerts.

| metric | labels | type | |
|---|---|---|---|
";

/// Metrics by name: each with its labels, its type and its help.
fn page(metrics: &str) -> String {
    let label = Regex::new(r#"(\w+)=""#).unwrap();
    let mut rows = BTreeMap::new();
    for family in metrics.split("# HELP ").skip(1) {
        let (help, rest) = family.split_once('\n').unwrap();
        let (name, help) = help.split_once(' ').unwrap();
        let kind = rest.lines().next().unwrap().rsplit_once(' ').unwrap().1;
        let (_, labels): &mut (_, BTreeSet<String>) =
            rows.entry(name).or_insert_with(|| ((kind, help), BTreeSet::new()));
        let samples = rest.lines().filter(|line| !line.starts_with('#'));
        labels.extend(samples.flat_map(|line| label.captures_iter(line)).map(|found| found[1].to_owned()));
        labels.remove("le");
    }
    let row = |(name, ((kind, help), labels)): (&str, ((&str, &str), BTreeSet<String>))| {
        let total = if kind == "counter" { "_total" } else { "" };
        let labels = labels.into_iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        format!("| `{name}{total}` | {labels} | {kind} | {} |\n", help.trim_end_matches('.'))
    };
    INTRODUCTION.to_owned() + &rows.into_iter().map(row).collect::<String>()
}

#[test]
fn the_page_of_metrics_lists_what_a_service_exports() {
    let file = deploy().join("../docs/metrics.md");
    let expected = page(&engine_metrics());
    if std::env::var_os("REWRITE_DOCS").is_some() {
        std::fs::write(&file, &expected).unwrap();
    }
    assert!(std::fs::read_to_string(&file).unwrap() == expected, "run `make docs`");
}
