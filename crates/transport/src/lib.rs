//! Sockets, TLS and HTTP/1.1 and 2 for any `Site`: limits, timeouts, draining, proxies, uploads.
//!
//! The limits of connections, heads and bodies, and the stop, are the same for every site. Nothing here knows an API, an
//! error envelope or a request id: the response to a rejected client is the site's (`Site::reject`).

mod activity;
mod base_url;
mod connection;
mod connections;
#[cfg(test)]
mod fuzz;
mod host_name;
mod lifecycle;
mod listener;
mod network;
mod parse_errors;
mod proxies;
mod response_body;
mod site;
mod tls;
mod upload;

pub use base_url::{BaseUrl, BaseUrlError};
pub use connection::{MAX_HEAD_BYTES, MAX_HEADERS, Timeouts};
pub use host_name::HostName;
pub use lifecycle::Lifecycle;
pub use listener::{ListenerSettings, serve};
pub use network::{NetworkClient, network};
pub use proxies::{NetworkError, TrustedProxies};
pub use response_body::{Response, ResponseBody};
pub use site::{ClientConnection, Rejection, Site};
pub use tls::{CertificateError, CertificateFiles, Certificates, Tls};
pub use upload::{Body, BodyBudget, BodyLimits, BodyPermit, Upload, UploadError};
