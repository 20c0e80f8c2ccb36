//! One request to a search server and its answer, bounded in size. Its time is bounded by whoever waits for it.

use std::error::Error;
use std::io;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode, redirect};

use super::error::{Obstacle, SearchError};
use super::url::RemoteUrl;

/// The largest answer that is read: far above a page of results.
pub(super) const MAX_ANSWER_BYTES: usize = 2 << 20;

/// Shorter than what most servers and firewalls grant, so that a connection is rarely found dead when it is needed.
const IDLE: Duration = Duration::from_secs(30);
const MOST_IDLE: usize = 32;

/// A client for one server. The URL alone decides who sees the queries, so redirects are not followed and proxies
/// from the environment are not used. HTTP/1.1 because there a search that is given up closes its connection.
pub(super) fn client(url: &RemoteUrl) -> Result<Client, SearchError> {
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
    if !url.is_encrypted() {
        // Otherwise a system without certificates, such as a small container, could not even speak plain HTTP.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|_| SearchError::NoTls)
}

/// Sends a request and reads the body of its answer. `refused` says what a status other than 200 means there, unless it
/// means the same everywhere.
pub(super) async fn exchange(
    request: RequestBuilder,
    refused: fn(StatusCode) -> SearchError,
) -> Result<Vec<u8>, SearchError> {
    let mut response = request.send().await.map_err(|error| no_answer(&error))?;
    match response.status() {
        StatusCode::OK => {}
        status if status.is_redirection() => return Err(SearchError::Redirected(status)),
        StatusCode::UNAUTHORIZED => return Err(SearchError::CredentialsRefused(StatusCode::UNAUTHORIZED)),
        status => return Err(refused(status)),
    }
    if response.content_length().is_some_and(|length| length > MAX_ANSWER_BYTES as u64) {
        return Err(SearchError::TooLarge);
    }
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|_| SearchError::BrokeOff)? {
        if body.len() + piece.len() > MAX_ANSWER_BYTES {
            return Err(SearchError::TooLarge);
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Why nothing came. Says it in kinds, not in the error's words: those may hold the query or what the server sent.
fn no_answer(error: &reqwest::Error) -> SearchError {
    if !error.is_connect() {
        return SearchError::BrokeOff;
    }
    let mut network = None;
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // What the system says has a number; what TLS says is an I/O error without one.
        let error_of_system = error.downcast_ref::<io::Error>().filter(|error| error.raw_os_error().is_some());
        network = error_of_system.map(io::Error::kind).or(network);
        cause = error.source();
    }
    SearchError::Unreachable(match network {
        _ if error.is_dns() => Obstacle::UnknownHost,
        Some(kind) => Obstacle::Network(kind),
        None => Obstacle::Tls,
    })
}
