//! The `health` command: queries the readiness of a running service. For containers without an HTTP client.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use reqwest::header::HOST;
use reqwest::{Client, redirect};
use serde::Deserialize;

use crate::error::{CliError, root_cause};
use crate::settings::Settings;

const TIMEOUT: Duration = Duration::from_secs(3);
const MAX_BODY_BYTES: usize = 64 << 10;
/// A host that is neither the API's nor the console's.
const HOST_NAME: &str = "localhost.invalid";

/// The body of `/readyz`.
#[derive(Deserialize)]
struct Readiness {
    ready: bool,
    parts: serde_json::Map<String, serde_json::Value>,
}

pub(crate) async fn health(settings: &Settings, given: Option<SocketAddr>) -> Result<ExitCode, CliError> {
    let address = given.or(settings.ops.listen).ok_or_else(|| {
        CliError::new(
            "`ops.listen` is none, so no service can be queried. Set it to an address, or give --ops ADDRESS.",
        )
    })?;
    let address = reachable(address);
    let readiness = get_readiness(address).await.map_err(|reason| {
        CliError::new(format!("no answer from {address}: {reason}. Is `adriaticum serve` running?"))
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", if readiness.ready { "ready" } else { "not ready" })?;
    for (part, state) in &readiness.parts {
        if let Some(reason) = state["reason"].as_str() {
            writeln!(out, "  {part:<8}  {reason}")?;
        }
    }
    Ok(if readiness.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A service that listens on all addresses is queried on the loopback address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn get_readiness(address: SocketAddr) -> Result<Readiness, String> {
    let body = get(address, "/readyz").await.map_err(|error| root_cause(&error))?;
    serde_json::from_slice(&body).map_err(|_| "another program listens there".into())
}

/// The body, by plain HTTP without proxies and redirects. One longer than `MAX_BODY_BYTES` may be cut off after that.
async fn get(address: SocketAddr, path: &str) -> reqwest::Result<Vec<u8>> {
    // Without the system's root certificates, which a container may not have.
    let client = Client::builder().no_proxy().tls_certs_only([]).redirect(redirect::Policy::none()).timeout(TIMEOUT);
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
