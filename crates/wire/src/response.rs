//! The body of a 200: exactly the completion object of the specification.

use chat::{Completion, MODEL, RequestId, Role};
use serde::Serialize;

use crate::json::to_bytes;

/// Bytes of everything but the text.
const FRAME_BYTES: usize = 384;

pub fn completion(completion: &Completion, id: RequestId) -> Vec<u8> {
    completion_object(completion, id.to_text().as_str(), id.unix_seconds(), MODEL, None)
}

/// `cached_tokens` is what our own runtime says beyond the specification.
pub(crate) fn completion_object(
    completion: &Completion,
    id: &str,
    created: u64,
    model: &str,
    cached_tokens: Option<usize>,
) -> Vec<u8> {
    let message = Message { role: Role::Assistant.as_str(), content: &completion.text };
    let object = CompletionObject {
        id,
        object: "chat.completion",
        created,
        model,
        choices: [Choice { index: 0, message, finish_reason: completion.finish_reason.as_str() }],
        usage: Usage {
            prompt_tokens: completion.usage.prompt,
            completion_tokens: completion.usage.completion,
            total_tokens: completion.usage.total,
            prompt_tokens_details: cached_tokens.map(|cached_tokens| PromptTokensDetails { cached_tokens }),
        },
    };
    to_bytes(&object, FRAME_BYTES + completion.text.len())
}

#[derive(Serialize)]
struct CompletionObject<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}
