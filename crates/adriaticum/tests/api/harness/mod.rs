//! What every test needs: the service as a process, a client that can also misbehave, and runtimes that follow a script.

mod answer;
mod client;
mod collector;
mod http2;
mod runtime;
mod service;
mod tls;

use std::time::{Duration, Instant};

pub(crate) use answer::{Answer, is_request_id};
pub(crate) use client::{Connection, Request, ask};
pub(crate) use collector::Collector;
pub(crate) use http2::Http2;
pub(crate) use runtime::{Reply, Runtime, unreachable_url};
pub(crate) use service::{Home, Ran, Service, Setup, on_postgres};
pub(crate) use tls::{Authority, Pair, Secured, replace};

/// How long a test waits for anything before it fails: far longer than anything takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

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
