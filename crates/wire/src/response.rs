//! The body of a 200: exactly the completion object of docs/openapi.json.

use chat::{Completion, MODEL, RequestId, TokenUsage};

use crate::json::JsonWriter;

/// Upper bound of the bytes of everything but the text.
const FRAME_BYTES: usize = 384;

pub fn completion(completion: &Completion, id: RequestId) -> Vec<u8> {
    completion_object(completion, &id.to_string(), id.unix_seconds(), MODEL, None)
}

/// `cached_tokens` is an addition of our own engine to the API's object.
pub(crate) fn completion_object(
    completion: &Completion,
    id: &str,
    created: u64,
    model: &str,
    cached_tokens: Option<usize>,
) -> Vec<u8> {
    let TokenUsage { prompt, completion: completed, total } = completion.usage;
    let body = JsonWriter::new(FRAME_BYTES + completion.text.len())
        .raw(r#"{"id":"#)
        .value(id)
        .raw(r#","object":"chat.completion","created":"#)
        .value(created)
        .raw(r#","model":"#)
        .value(model)
        .raw(r#","choices":[{"index":0,"message":{"role":"assistant","content":"#)
        .value(&completion.text)
        .raw(r#"},"finish_reason":"#)
        .value(completion.finish_reason.as_str())
        .raw(r#"}],"usage":{"prompt_tokens":"#)
        .value(prompt)
        .raw(r#","completion_tokens":"#)
        .value(completed)
        .raw(r#","total_tokens":"#)
        .value(total);
    let body = match cached_tokens {
        Some(tokens) => body.raw(r#","prompt_tokens_details":{"cached_tokens":"#).value(tokens).raw("}"),
        None => body,
    };
    body.raw("}}").into_bytes()
}
