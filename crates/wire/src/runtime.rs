//! The JSON of OpenAI-compatible runtimes: the request that we send, the response that we parse, and errors. Parsing is
//! lenient where runtimes differ, and strict where a token count or a text would otherwise have to be invented.

use std::borrow::Cow;

use chat::{ChatRequest, Completion, FinishReason, TokenUsage};
use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;

use crate::engine;
use crate::json::JsonWriter;

/// `model` is the name under which the runtime serves it.
pub fn request(request: &ChatRequest, model: &str) -> Vec<u8> {
    let content_bytes: usize = request.messages().iter().map(|message| message.content().len() + 40).sum();
    let mut body = JsonWriter::new(128 + model.len() + content_bytes).raw(r#"{"model":"#).value(model);
    for (at, message) in request.messages().iter().enumerate() {
        let before = if at == 0 { r#","messages":[{"role":"# } else { r#"},{"role":"# };
        body = body.raw(before).value(message.role().as_str()).raw(r#","content":"#).value(message.content());
    }
    body.raw(r#"}],"temperature":"#)
        .value(request.temperature().get())
        .raw(r#","max_tokens":"#)
        .value(request.max_tokens().get())
        .raw(r#","stream":false}"#)
        .into_bytes()
}

/// Why a runtime's 200 cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    #[error("the response is not JSON")]
    NotJson,
    #[error("the response is not a completion with `choices[0].message.content`")]
    NoContent,
}

/// Parses the body of a runtime's 200.
///
/// A message without text is an empty completion: reasoning models that `max_tokens` cuts off send `content: null`.
/// Every finish reason other than length becomes `stop`: the API (docs/openapi.json) has no third.
pub fn parse_completion(body: &[u8]) -> Result<Completion, ResponseError> {
    let response: ResponseBody<'_> = serde_json::from_slice(body).map_err(|error| match error.classify() {
        Category::Data => ResponseError::NoContent,
        Category::Io | Category::Syntax | Category::Eof => ResponseError::NotJson,
    })?;
    let choice = response.choices.into_iter().next().ok_or(ResponseError::NoContent)?;
    let finish_reason = match choice.finish_reason.as_deref() {
        Some("length" | "max_tokens") => FinishReason::Length,
        _ => FinishReason::Stop,
    };
    let UsageBody { prompt_tokens, completion_tokens, total_tokens } = response.usage.unwrap_or_default();
    let [prompt, completion, total] = [prompt_tokens, completion_tokens, total_tokens].map(|count| token_count(&count));
    let usage = TokenUsage { prompt, completion, total };
    Ok(Completion { text: choice.message.content.unwrap_or_default().into_owned(), finish_reason, usage })
}

/// The members that we read; runtimes send more.
#[derive(Deserialize)]
struct ResponseBody<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    usage: Option<UsageBody>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    message: ChoiceMessage<'a>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ChoiceMessage<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UsageBody {
    prompt_tokens: Value,
    completion_tokens: Value,
    total_tokens: Value,
}

/// `None` for anything but a plausible count.
fn token_count(count: &Value) -> Option<u32> {
    count.as_u64().and_then(|count| u32::try_from(count).ok())
}

/// The first model in a runtime's `/models`.
pub fn parse_first_model(body: &[u8]) -> Option<Model> {
    let document: Value = serde_json::from_slice(body).ok()?;
    let model = document["data"].get(0)?;
    let context = model["max_model_len"].as_u64().or_else(|| model["meta"]["n_ctx"].as_u64());
    let context = context.and_then(|tokens| usize::try_from(tokens).ok());
    let is_ours = model["owned_by"] == engine::OWNER;
    let device = model["device"].as_str().map(str::to_owned).filter(|_| is_ours);
    Some(Model { name: model["id"].as_str()?.to_owned(), context, is_ours, device })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub name: String,
    /// In tokens, prompt and completion together; vLLM, SGLang, llama.cpp's server and our own report it.
    pub context: Option<usize>,
    /// Served by our own engine.
    pub is_ours: bool,
    /// The compute device of our own engine, unless it is only the CPU.
    pub device: Option<String>,
}

/// Whether an error reports that the runtime had no capacity, as our own engine does, and so did no work.
pub fn is_no_capacity(body: &[u8]) -> bool {
    let document = serde_json::from_slice::<Value>(body);
    document.is_ok_and(|document| document["error"]["type"] == engine::NO_CAPACITY_TYPE)
}

/// A prompt that does not fit the model's context. In tokens, if the runtime reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOverflow {
    pub prompt: Option<u64>,
    /// If not, the prompt has at least this many tokens: some runtimes stop counting.
    pub is_exact: bool,
    pub context: Option<u64>,
}

/// Parses a runtime's 400 or 422 about the context's size. Recognises the wordings of llama.cpp's server, vLLM, SGLang,
/// TGI and OpenAI, and takes only the two numbers from them.
pub fn parse_context_overflow(body: &[u8]) -> Option<ContextOverflow> {
    let document: Value = serde_json::from_slice(body).ok()?;
    let error = &document["error"];
    let details = if error.is_object() { error } else { &document };
    let message = [&details["message"], error, &document["detail"]].into_iter().find_map(Value::as_str);
    let message = message.unwrap_or_default();

    const WORDINGS: [&str; 6] = [
        "maximum context length",
        "available context size",
        "model's context length",
        "`inputs` tokens + `max_new_tokens` must be",
        "`inputs` must have less than",
        "maximum model length",
    ];
    let recognised = details["type"] == engine::CONTEXT_OVERFLOW_TYPE
        || details["code"] == "context_length_exceeded"
        || WORDINGS.iter().any(|wording| message.contains(wording));
    if !recognised {
        return None;
    }
    let context = details["n_ctx"].as_u64().or_else(|| {
        let before =
            ["context length is ", "context size (", "context length (", "must be <= ", "less than ", "length of "];
        before.iter().find_map(|phrase| number_after(message, phrase))
    });
    let prompt = details["n_prompt_tokens"].as_u64().or_else(|| {
        let after = [" in the messages", " input tokens", " `inputs` tokens", " prompt tokens"];
        let before = ["request (", "input (", "resulted in ", "Given: "];
        let behind = after.iter().find_map(|phrase| number_before(message, phrase));
        behind.or_else(|| before.iter().find_map(|phrase| number_after(message, phrase)))
    });
    Some(ContextOverflow { prompt, is_exact: !message.contains("at least "), context })
}

fn number_after(text: &str, phrase: &str) -> Option<u64> {
    let rest = &text[text.find(phrase)? + phrase.len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

fn number_before(text: &str, phrase: &str) -> Option<u64> {
    let rest = &text[..text.find(phrase)?];
    let digits = rest.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    rest[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_overflows_are_recognised_in_each_runtimes_wording() {
        let cases: &[(&str, &str)] = &[
            (
                "llama.cpp",
                r#"{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9412,"n_ctx":8192}}"#,
            ),
            (
                "llama.cpp without figures",
                r#"{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error"}}"#,
            ),
            (
                "vLLM, flat",
                r#"{"object":"error","message":"This model's maximum context length is 8192 tokens. However, you requested 9660 tokens (9412 in the messages, 248 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError","param":null,"code":400}"#,
            ),
            (
                "vLLM, nested",
                r#"{"error":{"message":"'max_tokens' or 'max_completion_tokens' is too large: 248. This model's maximum context length is 8192 tokens and your request has 9412 input tokens (248 > 8192 - 9412). None","type":"BadRequestError","param":null,"code":400}}"#,
            ),
            (
                "vLLM, at least",
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, you requested 248 output tokens and your prompt contains at least 9412 input tokens, for a total of at least 9660 tokens.","type":"BadRequestError","code":400}}"#,
            ),
            (
                "SGLang",
                r#"{"object":"error","message":"The input (9412 tokens) is longer than the model's context length (8192 tokens).","type":"BadRequestError","code":400}"#,
            ),
            (
                "TGI",
                r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9412 `inputs` tokens and 248 `max_new_tokens`","error_type":"validation"}"#,
            ),
            (
                "OpenAI",
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9412 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            ),
        ];
        for (runtime, body) in cases {
            let is_exact = !runtime.ends_with("at least");
            let expected = ContextOverflow { prompt: Some(9412), is_exact, context: Some(8192) };
            assert_eq!(parse_context_overflow(body.as_bytes()), Some(expected), "{runtime}");
        }
    }

    #[test]
    fn other_errors_are_not_context_overflows() {
        for body in [
            "",
            "context length",
            r#"{"error":{"message":"model `x` not found","code":404}}"#,
            r#"{"error":"unauthorized"}"#,
            r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#,
        ] {
            assert_eq!(parse_context_overflow(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn token_counts_are_passed_on_as_measured_or_omitted() {
        let usage_of = |usage: &str| {
            let text = r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]"#;
            parse_completion(format!("{text}{usage}}}").as_bytes()).unwrap().usage
        };
        let of = |prompt, completion, total| TokenUsage { prompt, completion, total };
        let cases = [
            (r#","usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}"#, of(Some(3), Some(4), Some(7))),
            (r#","usage":{"prompt_tokens":3,"completion_tokens":4}"#, of(Some(3), Some(4), None)),
            (r#","usage":{"prompt_tokens":-3,"completion_tokens":"4","total_tokens":7.5}"#, of(None, None, None)),
            (r#","usage":{"prompt_tokens":99999999999,"completion_tokens":null}"#, of(None, None, None)),
            (r#","usage":null"#, of(None, None, None)),
            ("", of(None, None, None)),
        ];
        for (usage, expected) in cases {
            assert_eq!(usage_of(usage), expected, "{usage}");
        }
    }

    #[test]
    fn responses_without_a_text_are_errors() {
        let cases = [
            ("<html>", ResponseError::NotJson),
            ("{}", ResponseError::NoContent),
            (r#"{"choices":[]}"#, ResponseError::NoContent),
            (r#"{"choices":[{"finish_reason":"stop"}]}"#, ResponseError::NoContent),
            (r#"{"choices":[{"message":null,"finish_reason":"stop"}]}"#, ResponseError::NoContent),
            (r#"{"choices":[{"message":{"content":7},"finish_reason":"stop"}]}"#, ResponseError::NoContent),
            (r#"{"choices":[{"message":{"content":["x"]},"finish_reason":"stop"}]}"#, ResponseError::NoContent),
        ];
        for (body, expected) in cases {
            assert_eq!(parse_completion(body.as_bytes()), Err(expected), "{body}");
        }
    }

    #[test]
    fn every_finish_reason_is_length_or_stop_and_content_may_be_null() {
        use FinishReason::{Length, Stop};
        let cases = [
            (r#"{"content":"x"}"#, r#""stop""#, "x", Stop),
            (r#"{"content":"x"}"#, r#""length""#, "x", Length),
            (r#"{"content":"x"}"#, r#""max_tokens""#, "x", Length),
            (r#"{"content":"x"}"#, r#""content_filter""#, "x", Stop),
            (r#"{"content":"x"}"#, r#""tool_calls""#, "x", Stop),
            (r#"{"content":"x"}"#, r#""abort""#, "x", Stop),
            (r#"{"content":"x"}"#, "null", "x", Stop),
            (r#"{"content":null}"#, r#""length""#, "", Length),
            (r#"{"content":null,"reasoning_content":"well"}"#, r#""stop""#, "", Stop),
            (r#"{"role":"assistant","tool_calls":[]}"#, r#""tool_calls""#, "", Stop),
        ];
        for (message, finish, text, reason) in cases {
            let body = format!(r#"{{"choices":[{{"message":{message},"finish_reason":{finish}}}]}}"#);
            let read = parse_completion(body.as_bytes()).map(|completion| (completion.text, completion.finish_reason));
            assert_eq!(read, Ok((text.into(), reason)), "{body}");
        }
    }
}
