//! Sockets, TLS and HTTP/1.1 and 2 for any `Site`: limits, timeouts, draining, proxies, uploads.
//!
//! Every site gets the same treatment: who may connect, how long a head or a body may take, what happens when the
//! service stops. Nothing here knows an API, an error envelope or a request id: what a client is told when it is turned
//! away is the site's to say (`Site::reject`).

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
