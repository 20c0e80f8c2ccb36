//! What every test needs: services with scripted runtimes behind them, those of the API's tests, and a relay in front.

#[path = "../../api/harness/answer.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod answer;
#[path = "../../api/harness/client.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod client;
mod relay;
#[path = "../../api/harness/runtime.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod runtime;
#[path = "../../api/harness/service.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod service;

use std::time::{Duration, Instant};

pub(crate) use answer::Answer;
pub(crate) use client::{Connection, Request, ask};
pub(crate) use relay::{Relay, Seen};
pub(crate) use runtime::{Reply, Runtime, unreachable_url};
pub(crate) use service::{Service, Setup};

/// How long a test waits for anything before it fails: far longer than anything takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

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
