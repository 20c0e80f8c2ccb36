//! The ledger: one writer commits rows in groups, folds them into the sums, and deletes old ones. A row is durable once it
//! has a `Receipt`, and every row is counted once: in the sums, or on the list of rows that are not folded yet.

pub(crate) mod counters;
pub(crate) mod fold;
mod fold_schedule;
mod health;
pub(crate) mod partitions;
pub(crate) mod postgres;
mod postgres_columns;
pub(crate) mod postgres_fold;
pub(crate) mod pruning;
pub(crate) mod queue;
mod replies;
mod retention;
pub(crate) mod sqlite;
mod sqlite_fold;
mod writer;
