//! Fuzz tests of bodies from callers and runtimes: any input is parsed as JSON defines it or refused with a short
//! sentence, and a parsed message can be written and parsed again.

use chat::{ChatRequest, RequestId};
use fuzzer::{Target, magnitude};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::json::Json;
use crate::runtime::{
    is_no_capacity, parse_completion, parse_context_overflow, parse_first_model, request as runtime_request,
};
use crate::{ErrorCode, engine, envelope, parse_request, runtime};

/// Longer than any of our sentences, shorter than one that repeats a caller's text.
const MAX_MESSAGE_CHARS: usize = 600;

/// Requests with labelled, real conversations.
fn real_requests() -> impl Iterator<Item = String> {
    let rows = include_str!("../../grounding/data/dev.jsonl").lines().step_by(7);
    let rows = rows.filter_map(|row| serde_json::from_str::<Value>(row).ok());
    rows.map(|row| json!({ "model": "adriaticum", "messages": row["messages"], "max_tokens": 64 }).to_string())
}

const ODD_REQUESTS: [&str; 12] = [
    r#"["adriaticum",[["user","an array is no object"]],0.7,64]"#,
    r#"{"model":"adriaticum","messages":[["user","nor is this one"]]}"#,
    r#"{"model":"adriaticum","messages":[{"role":"user","content":"Hello!"}]}"#,
    r#" { "messages" : [ {"content":"\u00e9\ud83d\ude00\n\"q\"","role":"user"} ] , "temperature" : 0.7 , "model":"adriaticum" , "max_tokens" : 512 } "#,
    r#"{"model":"gpt-4o","messages":[{"role":"user","content":"Hi"}],"stream":true,"n":1,"tools":[],"user":"u1"}"#,
    r#"{"model":"adriaticum","messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]}"#,
    r#"{"model":"adriaticum","messages":[{"role":"tool","content":"x","tool_call_id":"c1"}],"temperature":2.5}"#,
    r#"{"model":"adriaticum","messages":[],"max_tokens":0}"#,
    r#"{"model":"adriaticum","model":"adriaticum","messages":[{"role":"user","content":"\ud800"}]}"#,
    r#"{"model":"adriaticum","messages":[{"role":"user","content":"x"}],"max_tokens":1e2,"temperature":-0}"#,
    "[[[[[[[[[[{\"a\":[]}]]]]]]]]]]",
    "\u{feff}{}",
];

const WORDS: [&str; 26] = [
    "\"model\"", "\"messages\"", "\"role\"", "\"content\"", "\"temperature\"", "\"max_tokens\"", "\"system\"",
    "\"user\"", "\"assistant\"", "\"adriaticum\"", "null", "true", "1e999", "-0.0", "\\u0000", "\\ud83d", "\\ude00",
    "{\"", "[{", "}]", "\\\\", "\u{0}", "\u{7f}", "\"choices\"", "\"usage\"", ",",
];

/// The parsers agree on what JSON is.
fn assert_same_syntax(input: &[u8]) -> bool {
    let (ours, theirs) = (Json::parse(input).is_ok(), serde_json::from_slice::<Value>(input).is_ok());
    // A number such as 1e999 is JSON, but out of range: either may refuse it.
    assert!(ours == theirs || input.contains(&b'e') || input.contains(&b'E') || !theirs, "accepted: {ours}, {theirs}");
    theirs
}

fn assert_short_sentence(sentence: &str) {
    assert!(!sentence.is_empty() && sentence.chars().count() <= MAX_MESSAGE_CHARS, "{sentence}");
    assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
}

fn assert_means(request: &ChatRequest, document: &Value) {
    let messages = document["messages"].as_array().expect("messages");
    assert_eq!(request.messages().len(), messages.len());
    for (message, written) in request.messages().iter().zip(messages) {
        assert_eq!(
            (Some(message.role().as_str()), Some(message.content())),
            (written["role"].as_str(), written["content"].as_str())
        );
    }
    if let Some(max_tokens) = document.get("max_tokens") {
        assert_eq!(Some(u64::from(request.max_tokens().get())), max_tokens.as_u64());
    }
    if let Some(temperature) = document.get("temperature") {
        assert_eq!(Some(request.temperature().get()), temperature.as_f64());
    }
}

#[test]
fn requests() {
    let target = Target::new("wire requests").corpus(real_requests()).corpus(ODD_REQUESTS).dictionary(WORDS).linear();
    target.run(|input| {
        let is_json = assert_same_syntax(input);
        match parse_request(input) {
            Ok(request) => {
                assert!(is_json);
                assert_means(&request, &serde_json::from_slice(input).expect("JSON"));
                let written = runtime_request(&request, "m");
                let again = engine::parse_request(&written).expect("our own output is valid");
                assert!(again == request, "{}", String::from_utf8_lossy(&written));
                (0, request.messages().len(), String::new())
            }
            Err(error) => {
                let sentence = error.to_string();
                assert_short_sentence(&sentence);
                let body = envelope(ErrorCode::InvalidRequest, &sentence, RequestId::now());
                let body: Value = serde_json::from_slice(&body).expect("an envelope is JSON");
                assert_eq!(body["error"]["message"], sentence);
                // The shape: the start of the sentence without numbers and punctuation.
                (1, 0, sentence.chars().filter(|c| c.is_ascii_alphabetic()).take(40).collect())
            }
        }
    });
}

const ANSWERS: [&str; 12] = [
    r#"{"id":"cmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello there.","tool_calls":[]},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3,"prompt_tokens_details":null},"prompt_logprobs":null}"#,
    r#"{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":null,"reasoning_content":"hm"}}],"created":1,"model":"m","system_fingerprint":"b1","object":"chat.completion","usage":{"completion_tokens":8,"prompt_tokens":9,"total_tokens":17},"id":"chatcmpl-x","timings":{"prompt_n":9,"prompt_ms":1.5}}"#,
    r#"{"choices":[{"message":{"content":"é\u00e9\ud83d\ude00"}}],"usage":{"prompt_tokens":-1,"completion_tokens":1.5,"total_tokens":"7"}}"#,
    r#"{"choices":[]}"#,
    r#"{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","max_model_len":4096}]}"#,
    r#"{"data":[{"id":"m","owned_by":"llamacpp","meta":{"n_ctx":8192,"n_vocab":32000}}]}"#,
    r#"{"data":[{"id":"m","owned_by":"adriaticum","meta":{"n_ctx":99999999999999999999}}]}"#,
    r#"{"error":{"code":400,"message":"the request exceeds the available context size (5000 tokens)","type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}"#,
    r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the messages, 1000 in the completion).","type":"BadRequestError","code":400}"#,
    r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`","error_type":"validation"}"#,
    r#"{"error":{"type":"no_room","message":"busy"}}"#,
    "<html><body>502 Bad Gateway</body></html>",
];

/// An input for which this property failed: an unread member is skipped even if it is not UTF-8.
const NO_UTF8: &[u8] = b"{\"x\":\"\xd5\",\"choices\":[{\"message\":{}}]}";

#[test]
fn runtime_answers() {
    let target = Target::new("runtime answers").corpus(ANSWERS).corpus([NO_UTF8]).dictionary(WORDS).linear();
    target.run(|input| {
        // Unread members need not be UTF-8.
        let is_json = serde_json::from_slice::<IgnoredAny>(input).is_ok();
        let model = parse_first_model(input);
        let overflow = parse_context_overflow(input);
        let kinds =
            (is_no_capacity(input), model.map(|model| (model.context.is_some(), model.is_ours)), overflow.is_some());
        let completion = parse_completion(input);
        if let Ok(completion) = &completion {
            assert!(is_json && completion.text.len() <= input.len());
            let document: Value = serde_json::from_slice(input).unwrap_or_default();
            // Of a duplicate member, the parsers may use either.
            if let Some(text) = document["choices"][0]["message"]["content"].as_str() {
                assert!(completion.text == text || input.windows(7).filter(|word| word == b"content").count() > 1);
            }
            let written = engine::completion(completion, "chatcmpl_1", 1, "m", 0);
            let again = runtime::parse_completion(&written).expect("our own output is valid");
            assert_eq!(again.text, completion.text);
            // Our counts are measured or missing, like those that were read.
            assert_eq!(
                (again.usage.prompt, again.usage.completion),
                (completion.usage.prompt, completion.usage.completion)
            );
        }
        let shape = completion
            .map(|read| (magnitude(read.text.len()), read.finish_reason.as_str(), read.usage.total.is_some()));
        (is_json, kinds, shape.ok())
    });
}
