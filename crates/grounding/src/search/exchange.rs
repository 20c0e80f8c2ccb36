//! One request to a search server and its response, bounded in size. The caller bounds the time.

use std::error::Error;
use std::io;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, RequestBuilder, StatusCode};
use url::Url;

use super::error::{ConnectError, SearchError};
use super::url::Credentials;

/// Far larger than a page of results.
pub(super) const MAX_RESPONSE_BYTES: usize = 2 << 20;

/// A GET, or a POST with JSON.
pub(super) struct SearchRequest {
    pub(super) url: Url,
    pub(super) json: Option<String>,
}

impl SearchRequest {
    pub(super) fn build(self, client: &Client, credentials: Option<&Credentials>) -> RequestBuilder {
        let request = match self.json {
            Some(json) => client.post(self.url).header(CONTENT_TYPE, "application/json").body(json),
            None => client.get(self.url),
        };
        match credentials {
            Some(credentials) => request.basic_auth(&credentials.user, Some(&credentials.password)),
            None => request,
        }
    }
}

/// Sends a request and reads the body of its response, at most `max_bytes` bytes. `status_error` interprets a status other
/// than 200 where kinds of servers differ.
pub(crate) async fn send(
    request: RequestBuilder,
    max_bytes: usize,
    status_error: fn(StatusCode) -> SearchError,
) -> Result<Vec<u8>, SearchError> {
    let mut response = request.send().await.map_err(|error| connection_error(&error))?;
    match response.status() {
        StatusCode::OK => {}
        status if status.is_redirection() => return Err(SearchError::Redirected(status)),
        StatusCode::UNAUTHORIZED => return Err(SearchError::CredentialsRefused(StatusCode::UNAUTHORIZED)),
        status => return Err(status_error(status)),
    }
    if response.content_length().is_some_and(|length| length > max_bytes as u64) {
        return Err(SearchError::TooLarge);
    }
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|_| SearchError::Disconnected)? {
        if body.len() + piece.len() > max_bytes {
            return Err(SearchError::TooLarge);
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Reports only the kind of an error, because its text may contain the query or data from the server.
fn connection_error(error: &reqwest::Error) -> SearchError {
    if !error.is_connect() {
        return SearchError::Disconnected;
    }
    let mut network = None;
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // System errors have a number; TLS errors are I/O errors without one.
        let system_error = error.downcast_ref::<io::Error>().filter(|error| error.raw_os_error().is_some());
        network = system_error.map(io::Error::kind).or(network);
        cause = error.source();
    }
    SearchError::Unreachable(match network {
        _ if error.is_dns() => ConnectError::UnknownHost,
        Some(kind) => ConnectError::Network(kind),
        None if error.url().is_some_and(|url| url.scheme() == "https") => ConnectError::Tls,
        None => ConnectError::Network(io::ErrorKind::Other),
    })
}
