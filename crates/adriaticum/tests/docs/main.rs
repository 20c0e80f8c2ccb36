//! Tests of the documentation: its commands run, the names in it exist, and its promises about backups and release
//! archives hold.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod archive;
mod backup;
mod book;
mod commands;
mod names;
mod supply;

use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(100));
