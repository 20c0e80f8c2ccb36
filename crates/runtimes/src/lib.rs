//! The pool of inference runtimes: OpenAI-shaped servers reached over HTTP.
//!
//! `balance` decides, purely, by `affinity` and `pace`, with a breaker for each member; `connection` and `member` talk to one
//! server; `pool` says who belongs to it (`names` are looked up) and watches everyone's health; `lane` puts it together:
//! choose, ask, retry once elsewhere. `supervisor` keeps the embedded runtime running, which is one more member. Nothing here
//! knows of callers, keys or the ledger, and nothing that a runtime says in its own words leaves this crate except to the log.

mod affinity;
pub mod balance;
mod connection;
mod key;
mod lane;
mod member;
mod names;
mod pace;
mod pool;
mod proof;
mod status;
mod supervisor;
mod tally;
mod url;

pub use key::{RuntimeKey, UnusableKey};
pub use lane::{InferenceError, Lane};
pub use member::{Attribution, Failure};
pub use pool::{Availability, Pool, PoolSettings};
pub use status::{BreakerState, MemberStatus};
pub use supervisor::{EngineCommand, UNUSABLE_MODEL, supervise};
pub use tally::Failures;
pub use url::{RuntimeUrl, UnusableUrl};
pub use wire::engine::Status as EngineStatus;
