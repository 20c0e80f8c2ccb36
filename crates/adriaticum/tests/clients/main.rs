//! The service through common client libraries, in the versions of `versions/`. `docs/clients.md` describes how they
//! handle every response; the tests compare that page with their behaviour.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod async_openai;
mod behaviour;
mod cases;
mod open_webui;
mod page;
mod relay;
mod scripts;

use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(100));
