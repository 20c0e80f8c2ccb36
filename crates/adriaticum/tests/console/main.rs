//! Tests of the console with the real binary and a real browser.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod browser;
mod journey;
mod leaving;
mod limits;
mod lists;
mod look;
mod people;
mod playground;
mod provider;
mod second_factors;
mod security;
mod single_sign_on;
mod snippets;
mod usage;

use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(60));
