//! The domain of chat completions, pure: what a request, a completion, a request id, a trace and an API key *are*.
//!
//! Fields are private and constructors check, so a value that exists is valid and nothing further in checks again.
//! Nothing here knows of JSON, HTTP, SQL or async.

mod completion;
mod key;
mod key_name;
mod request;
mod request_id;
mod trace;

pub use completion::{Completion, FinishReason, TokenUsage};
pub use key::{ApiKey, ApiKeyError, KeyDigest, KeyId, random_base62};
pub use key_name::{KeyName, KeyNameError};
pub use request::{ChatRequest, LimitError, MaxTokens, Message, Role, Temperature, limits};
pub use request_id::{MalformedRequestId, RequestId, RequestIdText};
pub use trace::Trace;

/// The name of the one model that this service hosts.
pub const MODEL: &str = "adriaticum";
