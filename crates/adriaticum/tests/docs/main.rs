//! What is written is so: commands in the documentation run, what it names exists, and what it promises about back-ups
//! and release archives holds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod book;
mod commands;
mod names;
mod supply;

use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(100));
