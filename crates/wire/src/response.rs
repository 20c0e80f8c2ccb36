//! The body of a successful answer: exactly the completion object of the specification.

use chat::{Completion, MODEL, RequestId};
use serde::Serialize;

/// Writes a completion object.
pub fn completion(completion: &Completion, id: RequestId) -> Vec<u8> {
    let usage = &completion.usage;
    crate::json::to_bytes(&Body {
        id: id.to_string(),
        object: "chat.completion",
        created: id.unix_seconds(),
        model: MODEL,
        choices: [Choice {
            index: 0,
            message: Message { role: "assistant", content: &completion.text },
            finish_reason: completion.finish_reason.as_str(),
        }],
        usage: Usage { prompt_tokens: usage.prompt, completion_tokens: usage.completion, total_tokens: usage.total },
    })
}

#[derive(Serialize)]
struct Body<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'static str,
    choices: [Choice<'a>; 1],
    usage: Usage,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    total_tokens: Option<u32>,
}
