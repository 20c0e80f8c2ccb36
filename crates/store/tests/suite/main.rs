//! Tests of the public interface on both backends: SQLite and a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accounts;
mod copy;
mod database;
mod folding;
mod hang_ups;
mod imports;
mod key_search;
mod ledger;
mod limits;
mod outages;
mod replicas;
mod sign_in;
mod tls;
mod upgrades;
mod usage;

/// Runs each function as a test on each backend. The compiler reports a function that is not listed as dead code.
macro_rules! on_each_backend {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test] async fn $test() { super::$test(crate::database::TestDatabase::sqlite()).await })*
        }
        mod postgres {
            $(#[tokio::test] async fn $test() { super::$test(crate::database::TestDatabase::postgres()).await })*
        }
    };
}
use on_each_backend;
