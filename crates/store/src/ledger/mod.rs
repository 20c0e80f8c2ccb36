//! The ledger: one writer commits rows in groups, folds them into the sums, and deletes old ones. A row is durable once it
//! has a `Receipt`.

pub(crate) mod counters;
pub(crate) mod fold;
mod fold_schedule;
mod health;
#[allow(clippy::module_inception, reason = "the ledger's handle, beside its parts")]
pub(crate) mod ledger;
pub(crate) mod partitions;
pub(crate) mod postgres;
mod postgres_columns;
pub(crate) mod postgres_fold;
pub(crate) mod pruning;
mod replies;
mod retention;
pub(crate) mod sqlite;
mod sqlite_fold;
mod writer;
