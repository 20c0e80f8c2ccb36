//! The database, SQLite or PostgreSQL: connections, transactions, statements that both understand, snapshots, the schemas
//! and the clock. It knows no table.

pub(crate) mod clock;
pub(crate) mod patterns;
pub(crate) mod postgres;
pub(crate) mod snapshot;
pub(crate) mod sql;
pub(crate) mod sqlite;
