//! Requests of commands to a service on this machine: plain HTTP, without proxies and redirects.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::header::HOST;
use reqwest::{Client, redirect};

const MAX_BODY_BYTES: usize = 64 << 10;
/// A host that is neither the API's nor the console's.
const HOST_NAME: &str = "localhost.invalid";

/// The body. One longer than `MAX_BODY_BYTES` may be cut off after that.
pub(crate) async fn get(address: SocketAddr, path: &str, timeout: Duration) -> reqwest::Result<Vec<u8>> {
    // Without the system's root certificates, which a container may not have.
    let client = Client::builder().no_proxy().tls_certs_only([]).redirect(redirect::Policy::none()).timeout(timeout);
    let request = client.build()?.get(format!("http://{address}{path}")).header(HOST, HOST_NAME);
    let mut response = request.send().await?;
    let mut body = Vec::new();
    while body.len() < MAX_BODY_BYTES
        && let Some(chunk) = response.chunk().await?
    {
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
