//! Limits of a key, a person, each person or everyone.
//!
//! A request reserves its maximum use in one step that covers all of its scopes (`state`): the sum of the spending, the
//! reservations and the request's maximum must fit every budget. The commit of the request's row adds the actual use to
//! `spending` and ends the reservation, so that no budget is exceeded and nothing is counted twice. Requests per minute
//! and in flight are checked in the same step.
//!
//! With SQLite one process serves, and keeps the state in memory. With PostgreSQL replicas share the state in tables, and
//! check it while they hold locks on the rows of these limits (`postgres`). Callers without limits skip all of this.

pub(crate) mod budget;
pub(crate) mod changes;
pub(crate) mod in_force;
pub(crate) mod permit;
pub(crate) mod postgres;
mod rate;
pub(crate) mod spending;
pub(crate) mod sqlite;
pub(crate) mod state;
mod table;
