//! The embedded runtime as its users meet it: the real binary with the real default model, fetched once and kept.
//!
//! What does no harm to others runs against one service that all tests share; whoever kills, cancels or reconfigures
//! has a service or an engine of its own. Tests take turns, because engines are poor neighbours of each other. Nothing
//! here depends on how fast the machine is: events are awaited.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod canaries;
mod cancelling;
mod commands;
mod completions;
mod crashes;
mod files;
mod harness;
mod markup;
mod queue;
mod sharing;
