//! Readiness of the service and its parts, for operators' tools.

use serde_json::{Map, json};

/// The body of a readiness response. Each part has the reason why it is not ready, if any.
pub fn readiness<'a>(ready: bool, parts: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Vec<u8> {
    let part = |(name, reason): (&str, Option<&str>)| {
        let part = match reason {
            Some(reason) => json!({ "ok": false, "reason": reason }),
            None => json!({ "ok": true }),
        };
        (name.to_owned(), part)
    };
    let parts: Map<_, _> = parts.into_iter().map(part).collect();
    format!("{}\n", json!({ "ready": ready, "parts": parts })).into_bytes()
}
