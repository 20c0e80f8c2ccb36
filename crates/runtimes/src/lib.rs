//! The pool of inference runtimes: OpenAI-shaped servers reached over HTTP.
//!
//! `balance` chooses a member by `affinity` and `pace`, with a breaker for each; it is pure. `member` and `connection`
//! communicate with one runtime, and `guard` breaks control tokens in messages to it. `endpoints` resolves URLs to
//! members. `pool` holds the membership and checks health. `client` sends requests, retries once, and moves requests away
//! from members that hang. `supervisor` runs the embedded runtime, which is also a member, and `watchdog` decides whether
//! it is hung. Nothing here knows callers, the service's API keys or the ledger. Error texts of runtimes leave this crate
//! only to the log.

mod affinity;
pub mod balance;
mod client;
mod connection;
mod counters;
mod endpoints;
mod guard;
mod idle;
mod key;
mod member;
mod pace;
mod pool;
mod probe;
mod status;
mod supervisor;
mod url;
mod watchdog;

pub use client::{InferenceError, PoolClient};
pub use counters::FailureCounts;
pub use key::{RuntimeKey, RuntimeKeyError};
pub use member::{Attribution, MemberError};
pub use pool::{Availability, Pool, PoolSettings};
pub use status::{BreakerState, MemberStatus};
pub use supervisor::{EngineCommand, MODEL_ERROR_EXIT_CODE, supervise};
pub use url::{RuntimeUrl, RuntimeUrlError};
pub use watchdog::stat_field;
pub use wire::engine::Status as EngineStatus;
