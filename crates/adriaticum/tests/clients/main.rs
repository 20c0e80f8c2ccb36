//! The service through client libraries that developers use, in the versions of `versions/`. `docs/clients.md` says how
//! they handle every response; the tests compare that page with what they do.
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
