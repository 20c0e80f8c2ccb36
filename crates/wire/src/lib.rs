//! The JSON of chat completions in both directions, and the error envelope with its one table of codes.
//!
//! `request` and `response` are the side that callers see; `runtime` is how we talk to OpenAI-shaped runtimes, `engine`
//! is how our own one answers, `ops` is what operators' tools read, and `openapi` tells machines what all of it looks like. Bytes go in, domain types come out, and the other
//! way round: nothing here knows of HTTP, sockets or storage.

pub mod engine;
mod error;
mod hints;
mod json;
pub mod openapi;
pub mod ops;
mod request;
mod response;
pub mod runtime;

pub use error::{ErrorCode, envelope};
pub use request::{MAX_BODY_BYTES, RequestError, parse_request};
pub use response::completion;
