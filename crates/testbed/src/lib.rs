//! The test harness: the service as a process, clients that can also misbehave, and the servers that it talks to, fake
//! and real. Tests pass in the path of the binary; nothing here knows the program's crates.
//!
//! Every process and thread that a test starts ends with it, also when it fails. Tests wait for events, and poll where
//! there are none.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod client;
mod clock;
mod conversation;
mod database_watch;
mod engine;
mod fake_runtime;
mod fake_search;
mod hang_up;
mod http2;
mod imports;
mod installation;
mod machine_watch;
mod model;
mod port;
mod postgres;
mod random;
mod response;
mod service;
mod slow_network;
mod tls;
mod visitor;
mod wait;

pub mod file_server;
pub mod gguf;
pub mod meaning;
pub mod zoo;

pub use background::{Background, EndOnDrop};
pub use client::{Connection, Request, chat_body, read_request};
pub use clock::ShiftedClock;
pub use conversation::{Conversation, words};
pub use database_watch::DatabaseWatch;
pub use engine::{Engine, EngineCompletion, EngineStatus};
pub use fake_runtime::{Behaviour, FakeRuntime, unreachable_url};
pub use fake_search::FakeSearch;
pub use hang_up::drop_when_pending;
pub use http2::{Http2Body, Http2Client, Http2Request, PendingResponse};
pub use imports::assert_imports_run_one_way;
pub use installation::{Installation, Output, Program, on_postgres};
pub use machine_watch::measure;
pub use model::{cache_folder, with_pre_tokenizer};
pub use port::free_port;
pub use postgres::{Cluster, Dump, Pooler, Script, Session};
pub use random::{Rng, seeded_rng};
pub use response::{ApiError, Completion, Response, is_request_id};
pub use service::{Service, ServiceBuilder};
pub use slow_network::SlowNetwork;
pub use tls::{CertificateAuthority, CertificateFiles, TlsClient, replace_file};
pub use visitor::Visitor;
pub use wait::{TIMEOUT, all_at_once, wait_for, wait_for_within};
