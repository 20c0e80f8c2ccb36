//! The machine API: one request from its head to the durable ledger.
//!
//! `handler` reads like the diagram in ARCHITECTURE.md; each of its steps has a file of its own. Nothing here knows
//! sockets, SQL, a runtime's JSON or configuration files.

mod address;
mod api;
mod authentication;
mod content_type;
mod counters;
mod error;
mod meter;
mod report;
mod request_log;
mod trace;
mod walk;

pub use address::ApiAddress;
pub use api::{Api, ApiSettings, Health, SearchStatus, Worker};
pub use counters::{PHASE_NAMES, SEARCH_OUTCOMES, Totals};
pub use request_log::{Field, RequestLog};
pub use walk::{handle_playground, reject, reject_foreign_host};
