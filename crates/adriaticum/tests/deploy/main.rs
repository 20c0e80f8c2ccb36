//! The files in `deploy/`: their settings exist, they parse, and nginx in front of replicas loses no request during a
//! rolling restart. Also nginx in front of runtimes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chart;
mod files;
mod folder;
mod image;
mod monitoring;
mod nginx;
mod rolling;
mod runtimes;

use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(60));
