//! The API host: one request's walk from the socket to the durable ledger, and the connections that carry it.
//!
//! `walk` reads like the design's one line; each of its steps has a file of its own. `listener` and `connection` keep
//! the sockets in order, for every `Site` there is; `ops` is the site that tells how the service is. Nothing here knows
//! of SQL, of a runtime's JSON or of configuration files.

mod admission;
mod answer;
mod api;
mod authentication;
mod body;
mod connection;
mod counts;
mod host;
mod line;
mod listener;
mod meter;
mod ops;
mod parse_errors;
mod phase;
mod proxies;
mod report;
mod response_body;
mod site;
mod tls;
mod trail;
mod walk;

pub use answer::Answer;
pub use api::{Api, ApiSettings, Desk, Health, SearchStatus};
pub use body::{BodyTimeouts, Upload};
pub use connection::Timeouts;
pub use host::{ApiAddress, HostName, UnusableBaseUrl};
pub use line::{Field, RequestLog};
pub use listener::{ListenerSettings, serve};
pub use ops::Ops;
pub use phase::Phase;
pub use proxies::{NoNetwork, TrustedProxies};
pub use response_body::ResponseBody;
pub use site::{Site, Unserved};
pub use tls::{CertificateFiles, Certificates, Tls, UnusableCertificate};
pub use walk::{play, refuse, refuse_elsewhere};
