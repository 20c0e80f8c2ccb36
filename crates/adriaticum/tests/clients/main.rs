//! The service as developers meet it: through the clients that they use already, each of the version in `versions/`.
//! What these make of every response stands in `docs/clients.md`; the tests compare that page with what they really do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod async_openai;
mod behaviour;
mod cases;
mod page;
mod relay;
mod scripts;

use std::time::Duration;

use testbed::Program;

pub(crate) const ADRIATICUM: Program =
    Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(100));
