//! An HTTP client for each runtime that searches.
//!
//! A connection lives in the tokio runtime that opened it. Lent to another one, it would wait for that runtime's turn and
//! end with it, in the middle of somebody else's search. So none is lent.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Client, redirect};
use tokio::runtime::{self, Handle};

use super::error::SearchError;
use super::url::RemoteUrl;

/// Shorter than what most servers and firewalls grant, so that a connection is rarely found dead when it is needed.
const IDLE: Duration = Duration::from_secs(30);
const MOST_IDLE: usize = 32;
/// Beyond, those of runtimes that have ended are suspected to be most of them, and all are made anew.
const MOST_RUNTIMES: usize = 256;

/// The clients for one server.
pub(super) struct Clients {
    is_encrypted: bool,
    made: Mutex<Made>,
}

struct Made {
    /// Made to see that it can be made; for the first who comes.
    first: Option<Client>,
    by_runtime: HashMap<runtime::Id, Client>,
}

impl Clients {
    pub(super) fn new(url: &RemoteUrl) -> Result<Self, SearchError> {
        let is_encrypted = url.is_encrypted();
        let made = Made { first: Some(client(is_encrypted)?), by_runtime: HashMap::new() };
        Ok(Self { is_encrypted, made: Mutex::new(made) })
    }

    /// The client of the runtime that this runs in.
    pub(super) fn here(&self) -> Result<Client, SearchError> {
        let id = Handle::current().id();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = made.by_runtime.get(&id) {
            return Ok(client.clone());
        }
        let client = made.first.take().map_or_else(|| client(self.is_encrypted), Ok)?;
        if made.by_runtime.len() >= MOST_RUNTIMES {
            made.by_runtime.clear();
        }
        made.by_runtime.insert(id, client.clone());
        Ok(client)
    }
}

/// The URL alone decides who sees the queries, so redirects are not followed and proxies from the environment are not
/// used. HTTP/1.1 because there a search that is given up closes its connection.
fn client(is_encrypted: bool) -> Result<Client, SearchError> {
    let _ = rustls::crypto::ring::default_provider().install_default(); // unless the program has chosen
    let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
    let mut builder = Client::builder()
        .user_agent(concat!("adriaticum/", env!("CARGO_PKG_VERSION")))
        .default_headers(accept)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MOST_IDLE)
        // Another crate may have enabled them; a small answer could then unpack to a large one.
        .no_gzip()
        .no_brotli()
        .no_deflate()
        .no_zstd();
    if !is_encrypted {
        // Otherwise a system without certificates, such as a small container, could not even speak plain HTTP.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|_| SearchError::NoTls)
}
