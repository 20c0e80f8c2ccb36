//! Requests to the provider. Responses are bounded in size and time, and redirects are not followed.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use reqwest::{Client, Request, redirect};

use crate::{OidcError, error_chain};

/// Metadata and keys of large providers have some tens of kilobytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

pub(crate) struct HttpClient(Client);

impl HttpClient {
    pub(crate) fn new(timeout: Duration) -> Result<Self, OidcError> {
        // No connection is kept: the provider may close it while a code is exchanged, which is not retried.
        let client =
            Client::builder().redirect(redirect::Policy::none()).timeout(timeout).pool_max_idle_per_host(0).build();
        Ok(Self(client.map_err(|error| OidcError::Unreachable(error_chain(&error)))?))
    }

    async fn send(&self, request: HttpRequest) -> io::Result<HttpResponse> {
        let request = Request::try_from(request).map_err(io::Error::other)?;
        let response = self.0.execute(request).await.map_err(io::Error::other)?;
        let (head, body) = http::Response::from(response).into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map_err(io::Error::other)?;
        Ok(HttpResponse::from_parts(head, body.to_bytes().into()))
    }
}

impl<'c> AsyncHttpClient<'c> for HttpClient {
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<HttpResponse>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}
