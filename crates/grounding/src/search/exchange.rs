//! One request to a search server and its answer, bounded in size. Its time is bounded by whoever waits for it.

use std::error::Error;
use std::io;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, RequestBuilder, StatusCode};
use url::Url;

use super::error::{ConnectError, SearchError};
use super::url::Credentials;

/// The largest answer that is read: far above a page of results.
pub(super) const MAX_ANSWER_BYTES: usize = 2 << 20;

/// What is sent: a GET, or a POST with JSON.
pub(super) struct Question {
    pub(super) url: Url,
    pub(super) json: Option<String>,
}

impl Question {
    pub(super) fn request(self, client: &Client, credentials: Option<&Credentials>) -> RequestBuilder {
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
        _ if error.is_dns() => ConnectError::UnknownHost,
        Some(kind) => ConnectError::Network(kind),
        None if error.url().is_some_and(|url| url.scheme() == "https") => ConnectError::Tls,
        None => ConnectError::Network(io::ErrorKind::Other),
    })
}
