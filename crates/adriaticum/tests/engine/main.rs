//! The embedded runtime: the real binary with the real default model, which is fetched once and kept.
//!
//! Tests share one service unless they kill, cancel or reconfigure; those start their own service or engine. Tests run
//! one at a time. Nothing here depends on the machine's speed: tests wait for events.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod canaries;
mod cancelling;
mod commands;
mod completions;
mod crashes;
mod embedded;
mod families;
mod files;
mod kernels;
mod markup;
mod queue;
mod sharing;
mod socket;
mod tokenizing;

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
