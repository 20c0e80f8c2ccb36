//! The API host: one request's walk from the socket to the durable ledger, and the connections that carry it.
//!
//! `walk` reads like the design's one line; each of its steps has a file of its own. `listener` and `connection` keep
//! the sockets in order. Nothing here knows of SQL, of a runtime's JSON or of configuration files.

mod admission;
mod answer;
mod api;
mod authentication;
mod body;
mod connection;
mod host;
mod listener;
mod meter;
mod walk;

pub use api::{Api, ApiSettings};
pub use connection::Timeouts;
pub use host::{ApiAddress, UnusableBaseUrl};
pub use listener::{ListenerSettings, serve};
