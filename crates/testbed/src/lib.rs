//! The test harness: the service as a process, clients that can also misbehave, and the servers that it talks to, fake
//! and real. Tests pass in the path of the binary; nothing here knows the program's crates.
//!
//! Whatever a test starts ends with it, however the test ends. Events are awaited; what announces no event is polled.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answer;
mod client;
mod conversation;
mod engine;
mod home;
mod http2;
mod model;
mod port;
mod postgres;
mod runtime;
mod service;
mod tls;
mod wait;

pub mod file_server;
pub mod gguf;

pub use answer::{Answer, Completed, Refused, is_request_id};
pub use client::{Connection, Request, ask, read_request};
pub use conversation::{Chat, words};
pub use engine::{Engine, Status};
pub use home::{Home, Program, Ran, on_postgres};
pub use http2::{Http2, Http2Request};
pub use model::cache_folder;
pub use port::free_port;
pub use postgres::Cluster;
pub use runtime::{Reply, Runtime, unreachable_url};
pub use service::{Service, Setup};
pub use tls::{Authority, Pair, Secured, replace};
pub use wait::{TIMEOUT, all_at_once, eventually, eventually_within};
