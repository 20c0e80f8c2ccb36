//! The embedded runtime as its users meet it: the real binary with the real default model, fetched once and kept.
//!
//! What does no harm to others runs against one service that all tests share; whoever kills, cancels or reconfigures
//! has a service or an engine of its own. Tests take turns, because engines are poor neighbours of each other. Nothing
//! here depends on how fast the machine is: events are awaited.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod canaries;
mod cancelling;
mod commands;
mod completions;
mod crashes;
mod embedded;
mod files;
mod markup;
mod queue;
mod sharing;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(600));

/// One test at a time: two engines that share their cores are much slower than one after the other, because the threads
/// of each wait for each other after every operation.
pub(crate) fn run_alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}
