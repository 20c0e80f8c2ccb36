//! Requests at the limits of what the description allows, and one step beyond. Schemathesis finds these by chance at
//! best, and does not notice a description that is stricter than the service.

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime, Request};

use crate::ADRIATICUM;
use crate::served;

/// What the service is expected to do.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Accepted,
    ApiError,
}

use Fate::{Accepted, ApiError};

/// The smallest valid request, with one value replaced.
fn with(path: &str, value: Value) -> Value {
    let mut request =
        json!({"model": "adriaticum", "messages": [message("user", "a")], "max_tokens": 1, "temperature": 1});
    *request.pointer_mut(path).unwrap() = value;
    request
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn messages(count: u64) -> Value {
    (0..count).map(|_| message("user", "a")).collect()
}

/// A request without one of an object's members, and one with an additional member.
fn members(object: &str, name: &str) -> [Value; 2] {
    let mut fewer = with("/max_tokens", json!(1));
    fewer.pointer_mut(object).unwrap().as_object_mut().unwrap().remove(name);
    let mut more = with("/max_tokens", json!(1));
    more.pointer_mut(object).unwrap()[format!("{name}_2")] = json!(1);
    [fewer, more]
}

fn edges(schemas: &Value) -> Vec<(Value, Fate)> {
    let bound = |path: &str| schemas.pointer(path).unwrap_or_else(|| panic!("no {path}")).clone();
    let number = |path: &str| bound(path).as_u64().unwrap();
    let mut edges = Vec::new();

    let tokens = |edge: &str| number(&format!("/ChatRequest/properties/max_tokens/{edge}"));
    for (value, fate) in [
        (tokens("minimum"), Accepted),
        (tokens("maximum"), Accepted),
        (tokens("minimum") - 1, ApiError),
        (tokens("maximum") + 1, ApiError),
    ] {
        edges.push((with("/max_tokens", json!(value)), fate));
    }
    let warmth = |edge: &str| bound(&format!("/ChatRequest/properties/temperature/{edge}")).as_f64().unwrap();
    for (value, fate) in [
        (warmth("minimum"), Accepted),
        (warmth("maximum"), Accepted),
        (warmth("minimum") - 0.001, ApiError),
        (warmth("maximum") + 0.001, ApiError),
    ] {
        edges.push((with("/temperature", json!(value)), fate));
    }
    let count = |edge: &str| number(&format!("/ChatRequest/properties/messages/{edge}"));
    for (value, fate) in [
        (count("minItems"), Accepted),
        (count("maxItems"), Accepted),
        (count("minItems") - 1, ApiError),
        (count("maxItems") + 1, ApiError),
    ] {
        edges.push((with("/messages", messages(value)), fate));
    }
    let longest = number("/Message/properties/content/maxLength") as usize;
    // Characters are counted, not bytes.
    for (content, fate) in [("", Accepted), (&"ž".repeat(longest), Accepted), (&"ž".repeat(longest + 1), ApiError)] {
        edges.push((with("/messages/0/content", json!(content)), fate));
    }
    for role in bound("/Message/properties/role/enum").as_array().unwrap() {
        edges.push((with("/messages/0/role", role.clone()), Accepted));
    }
    for role in ["tool", "developer", "User"] {
        edges.push((with("/messages/0/role", json!(role)), ApiError));
    }
    edges.push((with("/model", bound("/ChatRequest/properties/model/const")), Accepted));
    edges.push((with("/model", json!("Adriaticum")), ApiError));

    for (schema, object) in [("ChatRequest", ""), ("Message", "/messages/0")] {
        let required = bound(&format!("/{schema}/required"));
        for (name, _) in bound(&format!("/{schema}/properties")).as_object().unwrap() {
            let [fewer, more] = members(object, name);
            let is_required = required.as_array().unwrap().contains(&json!(name));
            edges.push((fewer, if is_required { ApiError } else { Accepted }));
            edges.push((more, ApiError));
        }
    }
    edges
}

#[test]
fn the_service_accepts_exactly_what_its_description_allows() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    for (request, fate) in edges(&served(&service)["components"]["schemas"]) {
        let status = service.send(&Request::chat(&key, request.to_string())).status;
        let seen = if status == 200 { Accepted } else { ApiError };
        assert_eq!((seen, seen == Accepted || status == 400), (fate, true), "{status}: {request:.200}");
    }
}
