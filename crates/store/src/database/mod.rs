//! The database, SQLite or PostgreSQL: connections, transactions, statements that both understand, snapshots, the tables
//! and the clock. Only `schema` knows tables.
//!
//! Every change is one transaction, and changes are made one after the other, across all processes. A commit that was
//! confirmed is durable. A connection whose caller is gone is reused only once it is idle.

pub(crate) mod clock;
pub(crate) mod patterns;
pub(crate) mod postgres;
mod schema;
pub(crate) mod snapshot;
pub(crate) mod sql;
pub(crate) mod sqlite;

use std::sync::Arc;

use chat::Timestamp;

use clock::StoreClock;
use postgres::Postgres;
use sqlite::Sqlite;

/// What every subject uses: connections, transactions, reads of many rows (`sql`, `snapshot`) and the time.
pub struct Base {
    pub(crate) backend: Backend,
    pub(crate) clock: Arc<StoreClock>,
}

pub(crate) enum Backend {
    Sqlite(Arc<Sqlite>),
    Postgres(Postgres),
}

impl Base {
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
