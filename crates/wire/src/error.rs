//! The table of errors: code, status and message for the caller. Causes are logged elsewhere, and never shown.

use chat::RequestId;
use serde_json::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    InvalidRequest,
    /// Missing, malformed, unknown, expired or revoked: callers cannot tell which.
    InvalidApiKey,
    InsufficientPermission,
    /// Not the API's host, or not its route.
    NotFound,
    PayloadTooLarge,
    /// The runtime could not be reached, or its response was invalid.
    InferenceError,
    /// Facts were required, but Search was unavailable.
    SearchUnavailable,
    /// No runtime is configured, the ledger cannot write, there is no capacity, or an internal error occurred.
    ServiceUnavailable,
}

impl ErrorCode {
    /// In the order of docs/errors.md.
    pub const ALL: [Self; 8] = [
        Self::InvalidRequest,
        Self::InvalidApiKey,
        Self::InsufficientPermission,
        Self::NotFound,
        Self::PayloadTooLarge,
        Self::InferenceError,
        Self::SearchUnavailable,
        Self::ServiceUnavailable,
    ];

    pub fn status(self) -> u16 {
        self.row().0
    }

    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// Used if there is no more specific message.
    pub fn default_message(self) -> &'static str {
        self.row().2
    }

    /// Whether it is useful to send the same request again.
    pub fn is_transient(self) -> bool {
        self.status() >= 500
    }

    fn row(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::InvalidRequest => (400, "invalid_request", "The request is not valid."),
            Self::InvalidApiKey => {
                (401, "invalid_api_key", "A valid API key is required in the header `Authorization: Bearer <API_KEY>`.")
            }
            Self::InsufficientPermission => {
                (403, "insufficient_permission", "This API key has no permission to execute completions.")
            }
            Self::NotFound => (404, "not_found", "There is nothing here."),
            Self::PayloadTooLarge => (413, "payload_too_large", "The request body is larger than 262144 bytes."),
            Self::InferenceError => {
                (502, "inference_error", "The inference service failed to answer. The request can be sent again.")
            }
            Self::SearchUnavailable => {
                (503, "search_unavailable", "This request needs facts from Search, and Search is unavailable.")
            }
            Self::ServiceUnavailable => {
                (503, "service_unavailable", "The service cannot take this request now. Please try again later.")
            }
        }
    }
}

pub fn envelope(code: ErrorCode, message: &str, request_id: RequestId) -> Vec<u8> {
    let error = json!({ "code": code.as_str(), "message": message, "request_id": request_id.to_string() });
    json!({ "error": error }).to_string().into_bytes()
}
