//! The `health` command: asks a running service whether it can serve. For places that have no other client, such as a
//! container that holds nothing but this program.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::CliError;
use crate::settings::Settings;

const TIMEOUT: Duration = Duration::from_secs(3);
const MAX_RESPONSE_BYTES: u64 = 64 << 10;

/// What a service says about itself.
#[derive(Deserialize)]
struct Readiness {
    ready: bool,
    parts: serde_json::Map<String, serde_json::Value>,
}

pub(crate) async fn health(settings: &Settings, given: Option<SocketAddr>) -> Result<ExitCode, CliError> {
    let address = given.or(settings.ops.listen).ok_or_else(|| {
        CliError::new("`ops.listen` is none, so there is nobody to ask. Set it to an address, or give --ops ADDRESS.")
    })?;
    let address = reachable(address);
    let asked = tokio::time::timeout(TIMEOUT, ask(address)).await;
    let readiness = asked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(|error| {
        CliError::new(format!("nobody answers on {address}: {error}. Is `adriaticum serve` running?"))
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", if readiness.ready { "ready" } else { "not ready" })?;
    for (part, told) in &readiness.parts {
        if let Some(reason) = told["reason"].as_str() {
            writeln!(out, "  {part:<8}  {reason}")?;
        }
    }
    Ok(if readiness.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where to knock: what listens on every address is asked on this machine's own.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn ask(address: SocketAddr) -> std::io::Result<Readiness> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut answer = Vec::new();
    socket.take(MAX_RESPONSE_BYTES).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    serde_json::from_str(body).map_err(|_| std::io::Error::other("that is not one of ours"))
}
