//! Readiness of the service and its parts, for operators' tools.

use serde::{Serialize, Serializer};

use crate::json::to_bytes;

/// The body of a readiness response. Each part has the reason why it is not ready, if any.
pub fn readiness<'a>(ready: bool, parts: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Vec<u8> {
    let part = |(name, reason): (&'a str, Option<&'a str>)| (name, Part { ok: reason.is_none(), reason });
    let mut body = to_bytes(&Readiness { ready, parts: parts.into_iter().map(part).collect() }, 256);
    body.push(b'\n');
    body
}

#[derive(Serialize)]
struct Readiness<'a> {
    ready: bool,
    /// An object; its members keep their order.
    #[serde(serialize_with = "as_object")]
    parts: Vec<(&'a str, Part<'a>)>,
}

#[derive(Serialize)]
struct Part<'a> {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

fn as_object<S: Serializer>(members: &[(&str, Part<'_>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(members.iter().map(|(name, part)| (name, part)))
}
