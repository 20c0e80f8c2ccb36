//! Black-box tests of the service: the real binary, over real sockets, with fake runtimes behind it.
//!
//! The first modules follow the parts of the API (docs/openapi.json, docs/errors.md); then come runtimes, search,
//! operations and the commands. Cases are data, and each kind of case has one helper. Every test has its own service,
//! data folder and port, so that all can run concurrently.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod audit;
mod authentication;
mod bodies;
mod budgets;
mod clocks;
mod collector;
mod commands;
mod confirmation;
mod connections;
mod console;
mod durability;
mod elsewhere;
mod embeddings;
mod endpoint;
mod errors;
mod fairness;
mod first_minutes;
mod fleet;
mod grounding;
mod hang_ups;
mod key_changes;
mod ledger;
mod operators;
mod ops;
mod proxies;
mod reports;
mod resources;
mod runtimes;
mod search_index;
mod sign_in;
mod sign_in_races;
mod sizes;
mod smuggling;
mod stopping;
mod strangers;
mod streams;
mod team;
mod telemetry;
mod tls;
mod viewers;
mod visitor;

use testbed::Program;

pub(crate) const ADRIATICUM: Program = Program::new(env!("CARGO_BIN_EXE_adriaticum"));
