//! The JSON of chat completions in both directions, and the error envelope with its one table of codes.
//!
//! `request` and `response` are what callers see, `runtime` is how we talk to OpenAI-shaped runtimes, `engine` is the
//! other end of that, `ops` is for operators' tools, and `openapi` describes the API. Bytes become domain types and the
//! other way round; nothing here knows HTTP, sockets or storage.

pub mod engine;
mod error;
#[cfg(test)]
mod fuzz;
mod hints;
mod json;
pub mod openapi;
pub mod ops;
mod plain;
mod request;
mod response;
pub mod runtime;

pub use error::{ErrorCode, envelope};
pub use request::{MAX_BODY_BYTES, RequestError, parse_request};
pub use response::completion;
