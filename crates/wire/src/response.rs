//! The body of a successful answer: exactly the completion object of the specification.

use chat::{Completion, MODEL, RequestId};

use crate::json::Writer;

/// Room for everything but the text.
const FRAME: usize = 384;

/// Writes a completion object.
pub fn completion(completion: &Completion, id: RequestId) -> Vec<u8> {
    let usage = &completion.usage;
    Writer::new(FRAME + completion.text.len())
        .raw(r#"{"id":"#)
        .value(id.to_text().as_str())
        .raw(r#","object":"chat.completion","created":"#)
        .value(&id.unix_seconds())
        .raw(r#","model":"#)
        .value(MODEL)
        .raw(r#","choices":[{"index":0,"message":{"role":"assistant","content":"#)
        .value(&completion.text)
        .raw(r#"},"finish_reason":"#)
        .value(completion.finish_reason.as_str())
        .raw(r#"}],"usage":{"prompt_tokens":"#)
        .value(&usage.prompt)
        .raw(r#","completion_tokens":"#)
        .value(&usage.completion)
        .raw(r#","total_tokens":"#)
        .value(&usage.total)
        .raw("}}")
        .finish()
}
