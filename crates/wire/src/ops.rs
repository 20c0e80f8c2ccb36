//! What an operator's tools are told: whether the service is ready, part by part.

use crate::json::Writer;

/// The body of an answer about readiness: each part's name, and what is wrong with it, if anything.
pub fn readiness<'a>(ready: bool, parts: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Vec<u8> {
    let mut body = Writer::new(256);
    body.raw(r#"{"ready":"#).value(&ready).raw(r#","parts":{"#);
    for (at, (part, wrong)) in parts.into_iter().enumerate() {
        body.raw(if at == 0 { "" } else { "," }).value(part);
        match wrong {
            None => body.raw(r#":{"ok":true}"#),
            Some(reason) => body.raw(r#":{"ok":false,"reason":"#).value(reason).raw("}"),
        };
    }
    body.raw("}}\n").finish()
}
