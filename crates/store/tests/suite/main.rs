//! What any backend of the store must hold, tested through the public interface alone, on SQLite and on a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accounts;
mod copy;
mod database;
mod ledger;
mod outages;
mod replicas;
mod tls;

/// Makes every function a test on each backend. One that is left out is dead code, which the linter minds.
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
