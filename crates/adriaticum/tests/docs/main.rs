//! What is written is so: commands in the documentation run, what it names exists, and what it promises about back-ups and
//! release archives holds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod book;
mod commands;
#[allow(dead_code, reason = "the API's tests use the rest")]
mod harness;
mod names;
mod supply;
