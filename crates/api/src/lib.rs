//! The machine API: one request from its head to the durable ledger.
//!
//! `handler` follows the diagram in ARCHITECTURE.md. The state of a request is in one `RequestRecord`. Nothing here
//! knows sockets, SQL, a runtime's JSON or configuration files.

mod address;
mod admit;
mod api;
mod authentication;
mod content_type;
mod counters;
mod error;
mod handler;
mod inference;
mod record;
mod request_log;
mod response;
mod trace;
mod worker;

pub use address::ApiAddress;
pub use api::{Api, ApiSettings, Health, SearchStatus};
pub use counters::{PHASE_NAMES, SEARCH_OUTCOMES, Totals};
pub use grounding::SearchOutage;
pub use handler::{handle_playground, reject, reject_foreign_host};
pub use request_log::{Field, RequestLog};
pub use worker::Worker;
