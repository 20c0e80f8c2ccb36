//! The service as developers meet it: through the clients that they use already, each of the version in `versions/`.
//! What these make of every answer stands in `docs/clients.md`; the tests compare that page with what they really do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod async_openai;
mod behaviour;
mod harness;
mod page;
mod scripts;
mod stage;
