//! The API as OpenAPI 3.1, built from the limits, enumerations and error table that the code uses. Limits that JSON Schema
//! cannot express (the sum of all contents, the size of a body) are in descriptions.

use chat::{ApiKey, FinishReason, MODEL, MaxTokens, RequestId, Role, Temperature, limits};
use serde_json::{Map, Value, json};
use wire::{ErrorCode, MAX_BODY_BYTES, MESSAGE_MEMBERS, REQUEST_MEMBERS};

const EXAMPLE_ID: &str = "chatcmpl_0198f2c4a1b07d3e8f6a5b4c3d2e1f00";

/// The members of all objects are sorted.
pub(crate) fn document(base_url: &str) -> Value {
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Adriaticum",
            "summary": "Chat completions by one hosted model",
            "description": "One operation: a list of chat messages goes in, one generated message comes out, with the \
                token figures that the inference runtime has measured. Any other route or method is 404 `not_found`.",
            "version": "v1",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": base_url }],
        "security": [{ "apiKey": [] }],
        "paths": { "/chat/completions": { "post": operation() } },
        "components": {
            "securitySchemes": { "apiKey": {
                "type": "http",
                "scheme": "bearer",
                "bearerFormat": ApiKey::PATTERN,
                "description": "A key from the console, or from `adriaticum keys create`.",
            } },
            "schemas": {
                "ChatRequest": request(),
                "Message": message(),
                "Completion": completion(),
                "Usage": usage(),
                "Error": error(),
            },
            "headers": headers(),
        },
    });
    document.sort_all_objects();
    document
}

fn operation() -> Value {
    let mut responses = Map::new();
    responses.insert("200".into(), success());
    for code in ErrorCode::ALL {
        responses.entry(code.status().to_string()).or_insert_with(|| failure(code.status()));
    }
    json!({
        "operationId": "createChatCompletion",
        "summary": "Run a chat completion",
        "requestBody": {
            "required": true,
            "description": format!("At most {MAX_BODY_BYTES} bytes."),
            "content": { "application/json": {
                "schema": schema("ChatRequest"),
                "example": { "model": MODEL, "messages": [{ "role": Role::User.as_str(), "content": "Say hello." }] },
            } },
        },
        "responses": responses,
    })
}

fn success() -> Value {
    let example = json!({
        "id": EXAMPLE_ID,
        "object": "chat.completion",
        "created": 1_756_000_000,
        "model": MODEL,
        "choices": [{
            "index": 0,
            "message": { "role": Role::Assistant.as_str(), "content": "Hello! How can I help you today?" },
            "finish_reason": FinishReason::Stop.as_str(),
        }],
        "usage": { "prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21 },
    });
    json!({
        "description": "The completion. It is in the ledger before it is sent.",
        "headers": { "x-request-id": header("RequestId"), "Link": header("Source") },
        "content": { "application/json": { "schema": schema("Completion"), "example": example } },
    })
}

/// The response for all errors of one status.
fn failure(status: u16) -> Value {
    let codes: Vec<_> = ErrorCode::ALL.into_iter().filter(|code| code.status() == status).collect();
    let names: Vec<_> = codes.iter().map(|code| code.as_str()).collect();
    let examples: Map<_, _> = codes.iter().map(|code| (code.as_str().to_owned(), example(*code))).collect();
    let mut headers = json!({ "x-request-id": header("RequestId"), "x-should-retry": header("ShouldRetry") });
    match status {
        401 => headers["WWW-Authenticate"] = header("Challenge"),
        502 | 503 => headers["Retry-After"] = header("RetryAfter"),
        _ => {}
    }
    let narrowed = json!({ "properties": { "error": { "properties": { "code": { "enum": names } } } } });
    json!({
        "description": codes.iter().map(|code| code.default_message()).collect::<Vec<_>>().join(" Or: "),
        "headers": headers,
        "content": { "application/json": {
            "schema": { "allOf": [schema("Error"), narrowed] },
            "examples": examples,
        } },
    })
}

fn example(code: ErrorCode) -> Value {
    json!({ "value": { "error": { "code": code.as_str(), "message": code.default_message(), "request_id": EXAMPLE_ID } } })
}

fn request() -> Value {
    let [model, messages, temperature, max_tokens] = REQUEST_MEMBERS;
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": [model, messages],
        "properties": {
            model: { "type": "string", "const": MODEL },
            messages: {
                "type": "array",
                "description": format!(
                    "The conversation, oldest first; at most {} characters of content in all.", limits::TOTAL_CHARS
                ),
                "minItems": limits::MESSAGES.start(),
                "maxItems": limits::MESSAGES.end(),
                "items": schema("Message"),
            },
            temperature: {
                "type": "number",
                "description": "The sampling temperature.",
                "minimum": limits::TEMPERATURE.start(),
                "maximum": limits::TEMPERATURE.end(),
                "default": Temperature::default().get(),
            },
            max_tokens: {
                "type": "integer",
                "description": "Completion tokens at the most; without fraction or exponent.",
                "minimum": limits::MAX_TOKENS.start(),
                "maximum": limits::MAX_TOKENS.end(),
                "default": MaxTokens::default().get(),
            },
        },
    })
}

fn message() -> Value {
    let [role, content] = MESSAGE_MEMBERS;
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": [role, content],
        "properties": {
            role: { "type": "string", "enum": Role::ALL.map(Role::as_str) },
            content: { "type": "string", "maxLength": limits::CONTENT_CHARS },
        },
    })
}

fn completion() -> Value {
    let choice = exactly(json!({
        "index": { "type": "integer", "const": 0 },
        "message": exactly(json!({
            "role": { "type": "string", "const": Role::Assistant.as_str() },
            "content": { "type": "string", "description": "The generated text." },
        })),
        "finish_reason": {
            "type": "string",
            "enum": FinishReason::ALL.map(FinishReason::as_str),
            "description": "`length` if `max_tokens` or the model's context ended it.",
        },
    }));
    exactly(json!({
        "id": request_id(),
        "object": { "type": "string", "const": "chat.completion" },
        "created": { "type": "integer", "minimum": 0, "description": "Unix time in seconds." },
        "model": { "type": "string", "const": MODEL },
        "choices": { "type": "array", "minItems": 1, "maxItems": 1, "items": choice },
        "usage": schema("Usage"),
    }))
}

fn usage() -> Value {
    let figure = json!({
        "type": ["integer", "null"],
        "minimum": 0,
        "description": "As the inference runtime has measured it; `null` if it has not. Never estimated.",
    });
    exactly(json!({ "prompt_tokens": figure, "completion_tokens": figure, "total_tokens": figure }))
}

fn error() -> Value {
    exactly(json!({
        "error": exactly(json!({
            "code": { "type": "string", "enum": ErrorCode::ALL.map(ErrorCode::as_str) },
            "message": { "type": "string", "description": "For people; it may change." },
            "request_id": request_id(),
        })),
    }))
}

fn headers() -> Value {
    json!({
        "RequestId": {
            "description": "The request's id: the same as in the body and in the console.",
            "required": true,
            "schema": request_id(),
        },
        "Source": {
            "description": "A source that the answer was grounded in, `<ADDRESS>; rel=\"cite-as\"; title=\"TITLE\"`; the first \
                one is `[1]` in the text. The header stands once for each.",
            "schema": { "type": "string" },
        },
        "RetryAfter": {
            "description": "Seconds after which it is worth trying again, if there is such a time.",
            "schema": { "type": "integer", "minimum": 0 },
        },
        "ShouldRetry": {
            "description": "Whether a client may send the same request again by itself.",
            "required": true,
            "schema": { "type": "string", "enum": ["true", "false"] },
        },
        "Challenge": { "description": "How to authenticate.", "schema": { "type": "string", "const": "Bearer" } },
    })
}

fn request_id() -> Value {
    json!({ "type": "string", "pattern": format!("^{}$", RequestId::PATTERN) })
}

/// An object with exactly these members.
fn exactly(properties: Value) -> Value {
    let mut names: Vec<_> = properties.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    names.sort_unstable();
    json!({ "type": "object", "additionalProperties": false, "required": names, "properties": properties })
}

fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn header(name: &str) -> Value {
    json!({ "$ref": format!("#/components/headers/{name}") })
}
