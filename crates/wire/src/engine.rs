//! The JSON that our own engine reads and writes: the counterpart of `runtime`.

use chat::Completion;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use crate::request::{RequestError, parse_runtime_request as parse_request};
use crate::response::completion_object;

/// The id of a request, also in its response.
pub const REQUEST_ID_HEADER: &str = "x-request-id";
/// A request's key, and its owner if any; both opaque. The runtime's queue is fair between people, and between the keys of
/// each person.
pub const KEY_HEADER: &str = "x-adriaticum-key";
pub const PERSON_HEADER: &str = "x-adriaticum-person";

/// `owned_by` of our models, by which the pool recognises our own engine.
pub(crate) const OWNER: &str = "adriaticum";

/// Error types that the pool handles. The second is the same as llama.cpp's.
pub(crate) const NO_CAPACITY_TYPE: &str = "no_room";
pub(crate) const CONTEXT_OVERFLOW_TYPE: &str = "exceed_context_size_error";

/// A completion object. `cached` is the number of prompt tokens that were found in the cache.
pub fn completion(completion: &Completion, id: &str, created: u64, model: &str, cached: usize) -> Vec<u8> {
    completion_object(completion, id, created, model, Some(cached))
}

/// `device` describes the compute device, unless it is only the CPU.
pub fn models(model: &str, context: usize, device: Option<&str>) -> Vec<u8> {
    let mut model = json!({ "id": model, "object": "model", "owned_by": OWNER, "max_model_len": context });
    if let Some(device) = device {
        model["device"] = device.into();
    }
    json!({ "object": "list", "data": [model] }).to_string().into_bytes()
}

/// The engine's gauges, and its counters since it started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub model: String,
    /// In tokens, prompt and completion together.
    pub context: usize,
    /// Roles whose messages end in a prompt only with plain text, not a special token; as a phrase.
    pub unmarked_roles: Option<String>,
    pub running: usize,
    pub waiting: usize,
    /// Requests whose prompts are being tokenized, or wait for it.
    pub tokenizing: usize,
    /// Cells of the KV cache.
    pub cells: usize,
    /// Cells in use or reserved.
    pub cells_used: usize,
    /// Cells shared by several requests in flight; each is counted once.
    pub cells_shared: usize,
    /// Compute threads: fewer while other processes need the CPUs.
    pub threads: usize,
    /// The model's layers on GPUs, and the memory of these GPUs in bytes.
    pub gpu_layers: u32,
    pub gpu_memory: u64,
    /// Batches decoded.
    pub steps: u64,
    /// Batches that generated tokens, and those of them that took longer than a quarter of a second.
    pub generating_steps: u64,
    pub slow_generating_steps: u64,
    /// Tokens in those batches.
    pub step_tokens: u64,
    /// The time for computing these batches, and for sampling their tokens.
    pub decoding_seconds: f64,
    pub sampling_seconds: f64,
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the cache.
    pub shared_tokens: u64,
    pub generated_tokens: u64,
    /// Requests whose callers hung up.
    pub cancelled: u64,
}

impl Status {
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain figures always serialize")
    }

    pub fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }
}

pub fn invalid_request(message: &str) -> Vec<u8> {
    error("invalid_request_error", message)
}

pub fn server_error(message: &str) -> Vec<u8> {
    error("server_error", message)
}

/// The queue is full, or the wait in it timed out.
pub fn no_capacity() -> Vec<u8> {
    error(NO_CAPACITY_TYPE, "The engine is at capacity.")
}

fn error(kind: &str, message: &str) -> Vec<u8> {
    json!({ "error": { "type": kind, "message": message } }).to_string().into_bytes()
}

/// Unless `is_exact`, the prompt has at least this many tokens.
pub fn context_overflow(prompt: usize, is_exact: bool, context: usize) -> Vec<u8> {
    let at_least = if is_exact { "" } else { "at least " };
    let message = format!("The prompt has {at_least}{prompt} tokens; the available context size is {context} tokens.");
    let error = json!({
        "type": CONTEXT_OVERFLOW_TYPE,
        "message": message,
        "n_prompt_tokens": prompt,
        "n_ctx": context,
    });
    json!({ "error": error }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use chat::{ChatRequest, FinishReason, MaxTokens, Message, Role, Temperature, TokenUsage};

    use super::*;
    use crate::runtime;

    #[test]
    fn the_pool_and_the_engine_understand_each_other() {
        let messages = vec![Message::new(Role::User, "\"quoted\"\n".into()).unwrap()];
        let request = ChatRequest::new(messages, Temperature::new(0.25).unwrap(), MaxTokens::new(7).unwrap()).unwrap();
        assert_eq!(parse_request(&runtime::request(&request, "any")), Ok(request));

        let usage = TokenUsage { prompt: Some(3), completion: Some(4), total: Some(7) };
        let sent = Completion { text: "é\u{0}".into(), finish_reason: FinishReason::Length, usage };
        assert_eq!(runtime::parse_completion(&completion(&sent, "x", 1, "m", 2)), Ok(sent));
        for device in [None, Some("31 of 31 layers on a \"card\"")] {
            let (name, owned) = ("m \"1\"".into(), device.map(str::to_owned));
            let model = runtime::Model { name, context: Some(8192), is_ours: true, device: owned };
            assert_eq!(runtime::parse_first_model(&models("m \"1\"", 8192, device)), Some(model));
        }

        for is_exact in [true, false] {
            let overflow = runtime::ContextOverflow { prompt: Some(9000), is_exact, context: Some(8192) };
            assert_eq!(runtime::parse_context_overflow(&context_overflow(9000, is_exact, 8192)), Some(overflow));
        }
        assert!(
            runtime::is_no_capacity(&no_capacity())
                && !runtime::is_no_capacity(&server_error("x"))
                && !runtime::is_no_capacity(b"x")
        );
    }

    #[test]
    fn a_request_extended_beyond_the_callers_limits_is_accepted() {
        let messages: Vec<_> = (0..20).map(|_| Message::new(Role::User, "x".repeat(1_600)).unwrap()).collect();
        let request = ChatRequest::new(messages, Temperature::default(), MaxTokens::default()).unwrap();
        let instructed = request.with_instructions(&"facts ".repeat(2_000));
        assert_eq!(parse_request(&runtime::request(&instructed, "any")), Ok(instructed));
        assert!(parse_request(br#"{"messages":[]}"#).is_err());
    }

    #[test]
    fn streams_are_refused() {
        let body = br#"{"messages":[{"role":"user","content":"x"}],"stream":true}"#;
        assert!(parse_request(body).unwrap_err().to_string().contains("`stream`"));
    }
}
