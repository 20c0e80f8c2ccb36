//! What lies in `deploy/`, as operators will use it: it names settings that there are, it can be read, and the proxy in
//! front of replicas that are restarted one after the other loses no request.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chart;
mod files;
mod folder;
mod monitoring;
mod nginx;
mod rolling;

use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(60));
