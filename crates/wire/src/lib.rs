//! The JSON of chat completions in both directions, and the error envelope with its table of codes.
//!
//! `request` and `response` are the callers' API, `runtime` is the client side of OpenAI-compatible runtimes, `engine` is
//! the server side of that, `ops` is for operators' tools, and `openapi` describes the API. Converts between bytes and
//! domain types; depends on neither HTTP, sockets nor storage.

pub mod engine;
mod error;
#[cfg(test)]
mod fuzz;
mod hints;
mod json;
pub mod openapi;
pub mod ops;
mod request;
mod response;
pub mod runtime;

pub use error::{ErrorCode, envelope};
pub use request::{MAX_BODY_BYTES, MESSAGE_MEMBERS, REQUEST_MEMBERS, RequestError, parse_request};
pub use response::completion;
