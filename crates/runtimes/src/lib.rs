//! The pool of inference runtimes: OpenAI-shaped servers reached over HTTP.
//!
//! `balance` decides, purely, by `affinity` and `pace`, with a breaker for each member; `connection` and `member` talk to one
//! server; `pool` says who belongs to it (`endpoints` are looked up) and watches everyone's health; `client` puts it together:
//! choose, ask, retry once elsewhere. `supervisor` keeps the embedded runtime running, which is one more member. Nothing here
//! knows of callers, keys or the ledger, and nothing that a runtime says in its own words leaves this crate except to the log.

mod affinity;
pub mod balance;
mod client;
mod connection;
mod counters;
mod endpoints;
mod key;
mod member;
mod pace;
mod pool;
mod probe;
mod status;
mod supervisor;
mod url;

pub use client::{Attempt, AttemptError, InferenceError, PoolClient};
pub use counters::FailureCounts;
pub use key::{RuntimeKey, RuntimeKeyError};
pub use member::{Attribution, MemberError};
pub use pool::{Availability, Pool, PoolSettings};
pub use status::{BreakerState, MemberStatus};
pub use supervisor::{EngineCommand, UNUSABLE_MODEL, supervise};
pub use url::{RuntimeUrl, RuntimeUrlError};
pub use wire::engine::Status as EngineStatus;
