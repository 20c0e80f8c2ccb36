//! Several replicas over a real PostgreSQL, in front of real runtimes, under load, while one part after the other
//! fails. No acknowledged request is lost or counted twice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod budgets;
mod clocks;
mod database;
mod load;
mod migrate;
mod proxy;
mod replicas;
mod runtimes;

use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(100));
