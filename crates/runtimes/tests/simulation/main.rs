//! The production balance in a simulated fleet of runtimes, against simple ones. `bench/pool.py` prints the results at full
//! size.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod balance;
mod fleet;
mod gateway;
mod results;
mod simulation;
mod tables;
mod traffic;
