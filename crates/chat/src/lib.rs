//! The domain of chat completions: requests, completions, request ids and API keys.
//!
//! Fields are private and constructors validate, so every value is valid and need not be checked again. Nothing here
//! depends on JSON, HTTP, SQL or async.

mod completion;
mod key;
mod key_name;
mod request;
mod request_id;
mod timestamp;

pub use completion::{Completion, FinishReason, TokenUsage};
pub use key::{ApiKey, ApiKeyError, KeyDigest, KeyId, random_base62};
pub use key_name::{KeyName, KeyNameError};
pub use request::{ChatRequest, LimitError, MaxTokens, Message, Role, Temperature, limits};
pub use request_id::{RequestId, RequestIdError};
pub use timestamp::Timestamp;

/// The one model that this service hosts.
pub const MODEL: &str = "adriaticum";
