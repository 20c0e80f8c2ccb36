//! The database, SQLite or PostgreSQL: connections, transactions, statements that both understand, snapshots, the schemas
//! and the clock. Only the schemas know tables.
//!
//! Every change is one transaction, and changes are made one after the other, across all processes. A commit that was
//! confirmed is durable. A connection whose caller is gone is reused only once it is idle.

pub(crate) mod clock;
pub(crate) mod patterns;
pub(crate) mod postgres;
pub(crate) mod snapshot;
pub(crate) mod sql;
pub(crate) mod sqlite;
