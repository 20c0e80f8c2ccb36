//! What every test needs: the model, a service in front of it, an engine on its own, and conversations.
//!
//! The service and the client are those of the API's tests.

#[path = "../../api/harness/answer.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod answer;
#[path = "../../api/harness/client.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod client;
mod conversation;
mod embedded;
mod engine;
mod model;
#[path = "../../api/harness/runtime.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod runtime;
#[path = "../../api/harness/service.rs"]
#[allow(dead_code, reason = "the API's tests use the rest")]
mod service;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use answer::Answer;
use client::ask;
pub(crate) use client::{Connection, Request};
pub(crate) use conversation::{Chat, all_at_once, words};
pub(crate) use embedded::{Embedded, is_alive};
pub(crate) use engine::{Engine, Status};
pub(crate) use model::{model, tune};
use runtime::Runtime;
pub(crate) use service::{Home, Ran, Service};

/// How long a test waits for anything before it fails: far longer than anything takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

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

/// One test at a time: two engines that share their cores are much slower than one after the other, because the threads
/// of each wait for each other after every operation.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
