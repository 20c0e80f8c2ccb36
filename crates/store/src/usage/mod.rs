//! What was used: sums over the ledger's rows, reports, searches of requests, prices and costs. Every figure is a sum over
//! rows: the roll-ups contain most of them, and a read adds those that are not folded yet (`unfolded`).

pub(crate) mod commit_id;
pub(crate) mod cost;
mod groups;
pub(crate) mod latency;
mod pending;
pub(crate) mod prices;
pub(crate) mod query;
mod report;
pub(crate) mod reports;
mod requests;
pub(crate) mod rollup;
pub(crate) mod unfolded;
