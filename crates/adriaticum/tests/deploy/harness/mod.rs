//! What every test needs: the folder, services with runtimes behind them, and nginx in front.

#[path = "../../api/harness/answer.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod answer;
#[path = "../../api/harness/client.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod client;
mod nginx;
#[path = "../../api/harness/runtime.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod runtime;
#[path = "../../api/harness/service.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod service;
#[path = "../../api/harness/tls.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod tls;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use answer::Answer;
pub(crate) use client::{Connection, Request, ask};
pub(crate) use nginx::Nginx;
pub(crate) use runtime::{Reply, Runtime};
pub(crate) use service::{Home, Ran, Service, Setup};
pub(crate) use tls::Authority;

/// How long a test waits for anything before it fails: far longer than anything takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until there is something to see. For what nobody tells us; all else is awaited.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The folder that this is all about.
pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Every file in it, with what it holds.
pub(crate) fn files() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![deploy()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push((path.clone(), std::fs::read_to_string(path).unwrap())),
            }
        }
    }
    files
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
