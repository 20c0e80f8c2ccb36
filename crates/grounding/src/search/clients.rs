//! One HTTP client for each tokio runtime.
//!
//! A connection is driven by the runtime that opened it. Used from another runtime, it would stall while the first one is
//! busy, and break when that ends. So connections are not shared between runtimes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Client, redirect};
use tokio::runtime::{self, Handle};

use super::error::SearchError;

/// Shorter than the timeouts of most servers and firewalls, so that a reused connection is rarely dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_IDLE_CONNECTIONS: usize = 32;
/// Beyond this, most clients belong to runtimes that have ended, and all are dropped.
const MAX_CLIENTS: usize = 256;

pub(crate) struct Clients {
    transport: Transport,
    clients: Mutex<ClientMap>,
}

/// The transport of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    Plain,
    Tls,
    /// A socket on this machine.
    Unix(PathBuf),
}

struct ClientMap {
    /// Built at start to check that it can be. The first runtime gets it.
    unused: Option<Client>,
    by_runtime: HashMap<runtime::Id, Client>,
}

impl Clients {
    pub(crate) fn new(transport: Transport) -> Result<Self, SearchError> {
        let clients = ClientMap { unused: Some(client(&transport)?), by_runtime: HashMap::new() };
        Ok(Self { transport, clients: Mutex::new(clients) })
    }

    pub(crate) fn for_current_runtime(&self) -> Result<Client, SearchError> {
        let id = Handle::current().id();
        let mut clients = self.clients.lock();
        if let Some(client) = clients.by_runtime.get(&id) {
            return Ok(client.clone());
        }
        let client = clients.unused.take().map_or_else(|| client(&self.transport), Ok)?;
        if clients.by_runtime.len() >= MAX_CLIENTS {
            clients.by_runtime.clear();
        }
        clients.by_runtime.insert(id, client.clone());
        Ok(client)
    }
}

/// Only the server of the URL gets a query: redirects are not followed, and proxies from the environment are not used.
/// HTTP/1.1, because with it a cancelled search closes its connection.
fn client(transport: &Transport) -> Result<Client, SearchError> {
    let _ = rustls::crypto::ring::default_provider().install_default(); // unless the program has installed one
    let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
    let mut builder = Client::builder()
        .user_agent(concat!("adriaticum/", env!("CARGO_PKG_VERSION")))
        .default_headers(accept)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        // Another crate may have enabled them. A small response could then decompress to a large one.
        .no_gzip()
        .no_brotli()
        .no_deflate()
        .no_zstd();
    if *transport != Transport::Tls {
        // Otherwise the build fails on systems without root certificates, such as small containers.
        builder = builder.tls_certs_only([]);
    }
    if let Transport::Unix(socket) = transport {
        builder = builder.unix_socket(socket.as_path());
    }
    builder.build().map_err(|_| SearchError::NoTls)
}
