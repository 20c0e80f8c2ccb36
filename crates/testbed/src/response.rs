//! An HTTP response, and the only two bodies that the API sends: the completion object and the error envelope. Parsing
//! one checks its exact members, and that its request id equals the one in the header.

use serde_json::Value;

/// Every error code with its status, as in docs/errors.md.
const CODES: [(u16, &str); 8] = [
    (400, "invalid_request"),
    (401, "invalid_api_key"),
    (403, "insufficient_permission"),
    (404, "not_found"),
    (413, "payload_too_large"),
    (502, "inference_error"),
    (503, "search_unavailable"),
    (503, "service_unavailable"),
];

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A parsed completion object.
#[derive(Debug)]
pub struct Completion {
    pub id: String,
    pub content: String,
    pub finish_reason: String,
    pub created: u64,
    /// Prompt, completion, total.
    pub tokens: [Option<u64>; 3],
}

/// A parsed error envelope.
#[derive(Debug)]
pub struct ApiError {
    pub status: u16,
    pub code: String,
    pub message: String,
    pub request_id: String,
}

impl Response {
    /// The value of a header, which must not be repeated. The name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(header, _)| header == name).map(|(_, value)| value.as_str());
        let value = values.next();
        assert!(values.next().is_none(), "{name} is repeated: {self:?}");
        value
    }

    pub fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The completion object of a 200, which must have exactly its members.
    pub fn completion(&self) -> Completion {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        let body = self.json();
        assert_members(&body, &["choices", "created", "id", "model", "object", "usage"]);
        assert_eq!(body["object"], "chat.completion");
        assert_eq!(body["model"], "adriaticum");
        let [choice] = body["choices"].as_array().unwrap().as_slice() else { panic!("one choice: {body}") };
        assert_members(choice, &["finish_reason", "index", "message"]);
        assert_eq!(choice["index"], 0);
        assert_members(&choice["message"], &["content", "role"]);
        assert_eq!(choice["message"]["role"], "assistant");
        let usage = &body["usage"];
        assert_members(usage, &["completion_tokens", "prompt_tokens", "total_tokens"]);
        let tokens = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| match &usage[name] {
            Value::Null => None,
            figure => Some(figure.as_u64().unwrap_or_else(|| panic!("{name}: {body}"))),
        });
        Completion {
            id: self.checked_request_id(&body["id"]),
            content: choice["message"]["content"].as_str().unwrap().to_owned(),
            finish_reason: choice["finish_reason"].as_str().unwrap().to_owned(),
            created: body["created"].as_u64().unwrap(),
            tokens,
        }
    }

    /// The error envelope, which must have exactly its members and the status that belongs to its code.
    pub fn error(&self) -> ApiError {
        let body = self.json();
        assert_members(&body, &["error"]);
        let envelope = &body["error"];
        assert_members(envelope, &["code", "message", "request_id"]);
        let error = ApiError {
            status: self.status,
            code: envelope["code"].as_str().unwrap().to_owned(),
            message: envelope["message"].as_str().unwrap().to_owned(),
            request_id: self.checked_request_id(&envelope["request_id"]),
        };
        assert!(CODES.contains(&(error.status, &error.code)), "{error:?}");
        assert!(!error.message.is_empty(), "{error:?}");
        error
    }

    /// The message of the error, which must have that code.
    pub fn expect_error(&self, code: &str) -> String {
        let error = self.error();
        assert_eq!(error.code, code, "{error:?}");
        error.message
    }

    /// The status, and the code if it is an error. Both kinds of body are checked.
    pub fn outcome(&self) -> (u16, Option<String>) {
        if self.status == 200 {
            self.completion();
            return (200, None);
        }
        (self.status, Some(self.error().code))
    }

    /// The request id in the body, which must be well-formed and the same as in the header.
    fn checked_request_id(&self, in_body: &Value) -> String {
        let id = in_body.as_str().unwrap_or_else(|| panic!("an id: {self:?}"));
        assert!(is_request_id(id), "{id}");
        assert_eq!(self.header("x-request-id"), Some(id));
        id.to_owned()
    }
}

/// `chatcmpl_` and 32 hexadecimal characters.
pub fn is_request_id(text: &str) -> bool {
    text.strip_prefix("chatcmpl_")
        .is_some_and(|digits| digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit()))
}

fn assert_members(object: &Value, names: &[&str]) {
    let members: Vec<_> = object.as_object().unwrap_or_else(|| panic!("an object: {object}")).keys().collect();
    let mut members: Vec<_> = members.into_iter().map(String::as_str).collect();
    members.sort_unstable();
    assert_eq!(members, names, "{object}");
}
