//! Requests to the provider. Responses are bounded in size and time, and redirects are not followed.

use std::pin::Pin;
use std::time::Duration;

use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use reqwest::{Client, redirect};

use crate::{OidcError, error_chain};

/// Metadata and keys of large providers have some tens of kilobytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

pub(crate) struct HttpClient(Client);

#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("{0}")]
    Request(#[from] reqwest::Error),
    #[error("{0}")]
    Malformed(#[from] http::Error),
    #[error("the response is larger than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge,
}

impl HttpClient {
    pub(crate) fn new(timeout: Duration) -> Result<Self, OidcError> {
        // No connection is kept: the provider may close it while a code is exchanged, which is not retried.
        let client =
            Client::builder().redirect(redirect::Policy::none()).timeout(timeout).pool_max_idle_per_host(0).build();
        Ok(Self(client.map_err(|error| OidcError::Unreachable(error_chain(&error)))?))
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let request = self.0.request(head.method, head.uri.to_string()).headers(head.headers).body(body);
        let mut response = request.send().await?;
        let mut answer = http::Response::builder().status(response.status());
        if let Some(headers) = answer.headers_mut() {
            *headers = response.headers().clone();
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if bytes.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(HttpError::TooLarge);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(answer.body(bytes)?)
    }
}

impl<'c> AsyncHttpClient<'c> for HttpClient {
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}
