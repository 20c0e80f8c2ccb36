//! The body of a successful answer: exactly the completion object of the specification.

use chat::{Completion, MODEL, RequestId};

use crate::json::Writer;

/// Room for everything but the text.
const FRAME: usize = 384;

/// Writes a completion object.
pub fn completion(completion: &Completion, id: RequestId) -> Vec<u8> {
    begin(completion, id.to_text().as_str(), id.unix_seconds(), MODEL).raw("}}").finish()
}

/// A completion object up to the last of its token figures, where a runtime has more to say.
pub(crate) fn begin(completion: &Completion, id: &str, created: u64, model: &str) -> Writer {
    let usage = &completion.usage;
    let mut writer = Writer::new(FRAME + completion.text.len());
    writer
        .raw(r#"{"id":"#)
        .value(id)
        .raw(r#","object":"chat.completion","created":"#)
        .value(&created)
        .raw(r#","model":"#)
        .value(model)
        .raw(r#","choices":[{"index":0,"message":{"role":"assistant","content":"#)
        .value(&completion.text)
        .raw(r#"},"finish_reason":"#)
        .value(completion.finish_reason.as_str())
        .raw(r#"}],"usage":{"prompt_tokens":"#)
        .value(&usage.prompt)
        .raw(r#","completion_tokens":"#)
        .value(&usage.completion)
        .raw(r#","total_tokens":"#)
        .value(&usage.total);
    writer
}
