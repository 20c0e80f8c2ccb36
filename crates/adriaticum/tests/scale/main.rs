//! Several replicas over a real PostgreSQL, in front of real runtimes, under load, while one thing after the other fails.
//! Whatever fails: nothing that was acknowledged is lost, and nothing counts twice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod database;
#[allow(dead_code, reason = "the engine's and the API's tests use the rest")]
mod harness;
mod load;
mod migrate;
mod replicas;
mod runtimes;
