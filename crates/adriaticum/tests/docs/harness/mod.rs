//! What every test needs: services, scripted runtimes and a client; those of the API's tests.

#[path = "../../api/harness/answer.rs"]
mod answer;
#[path = "../../api/harness/client.rs"]
mod client;
#[path = "../../api/harness/runtime.rs"]
mod runtime;
#[path = "../../api/harness/service.rs"]
mod service;

use std::time::{Duration, Instant};

pub(crate) use answer::Answer;
pub(crate) use client::{Connection, Request, ask};
pub(crate) use runtime::{Reply, Runtime};
pub(crate) use service::{Home, Ran, Service, Setup};

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
