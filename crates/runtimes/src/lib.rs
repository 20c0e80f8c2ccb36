//! The pool of inference runtimes: OpenAI-shaped servers reached over HTTP.
//!
//! `balance` decides, purely, with a breaker for each member; `connection` and `member` talk to one server; `pool` puts
//! both together: choose, ask, retry once elsewhere, watch everyone's health. `supervisor` keeps the embedded
//! runtime running, which is one more member. Nothing here knows of callers, keys or the ledger, and
//! nothing that a runtime says in its own words leaves this crate except to the log.

pub mod balance;
mod connection;
mod member;
mod pool;
mod supervisor;
mod url;

pub use member::{Attribution, Failure};
pub use pool::{Availability, InferenceError, Lane, MemberStatus, Pool, PoolSettings};
pub use supervisor::{EngineCommand, UNUSABLE_MODEL, supervise};
pub use url::{RuntimeUrl, UnusableUrl};
