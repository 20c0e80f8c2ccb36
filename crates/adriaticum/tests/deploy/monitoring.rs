//! Dashboard and alerts query metrics and labels that a running service has.

use std::collections::BTreeSet;

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

/// The metrics of a service that has served a request from a runtime that says that it is our engine.
fn told() -> String {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let status = json!({
        "data": [{ "id": "small", "owned_by": "adriaticum" }],
        "model": "small", "context": 2048, "running": 0, "waiting": 0, "cells": 1, "cells_used": 0, "cells_shared": 0,
        "steps": 0, "step_tokens": 0, "prompt_tokens": 0, "shared_tokens": 0, "generated_tokens": 0, "cancelled": 0,
    });
    runtime.set_health_behaviour(Behaviour::Respond(200, status.to_string()));
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    service.chat(&key, "hello").completion();
    service.chat("nobody", "hello").expect_error("invalid_api_key");
    service.get_ops("/metrics").1 + &told_of_tls()
}

/// The metrics of a service with TLS.
fn told_of_tls() -> String {
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
    let told = told();
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
                let samples: Vec<_> = told
                    .lines()
                    .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
                    .collect();
                assert!(!samples.is_empty(), "nothing tells {name}: {expression}");
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
        assert!(names.len() >= at_least, "what is looked for is not found: {names:?}");
    }
}
