//! The pool of inference runtimes: OpenAI-shaped servers reached over HTTP.
//!
//! `balance` chooses a member, purely, by `affinity` and `pace` and with a breaker for each. `member` and `connection`
//! talk to one runtime, `guard` breaks control tokens in messages to it, `endpoints` resolves URLs to members, `pool`
//! holds the membership and checks health, `client` chooses, asks, retries once and moves requests away from members
//! that hang. `supervisor` runs the embedded runtime, which is one more member, and `watchdog` says whether that is hung.
//! Nothing here knows callers, keys of ours or the ledger, and no text of a runtime's own leaves this crate except to
//! the log.

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

pub use client::{Attempt, AttemptError, InferenceError, PoolClient};
pub use counters::FailureCounts;
pub use key::{RuntimeKey, RuntimeKeyError};
pub use member::{Attribution, MemberError};
pub use pool::{Availability, Pool, PoolSettings};
pub use status::{BreakerState, MemberStatus};
pub use supervisor::{EngineCommand, MODEL_ERROR_EXIT_CODE, supervise};
pub use url::{RuntimeUrl, RuntimeUrlError};
pub use wire::engine::Status as EngineStatus;
