//! The console as people meet it: the real binary, a real browser, and nothing that a person could not do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;
mod journey;
mod look;
mod security;
