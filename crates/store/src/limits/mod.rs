//! Limits of a key, a person, each person or everyone.
//!
//! A request reserves its maximum use in one step that covers all of its scopes (`state`): the sum of the spending, the
//! reservations and the request's maximum must fit every budget. The commit of the request's row adds the actual use to
//! `spending` and ends the reservation, so that no budget is exceeded and nothing is counted twice. Requests per minute
//! and in flight are checked in the same step.
//!
//! With SQLite one process serves, and keeps the state in memory. With PostgreSQL replicas share the state in tables, and
//! check it while they hold locks on the rows of these limits (`postgres::limits`). Callers without limits skip all of this.

mod budget;
mod changes;
mod kind;
mod permit;
mod rate;
mod spending;
mod state;
mod table;

pub use budget::{Budget, BudgetUse, LimitUse};
pub(crate) use changes::{DELETE_ENDED, LIMITS_VERSION, count_up, oldest_kept};
pub use kind::{BudgetUnit, Limit, LimitAmountError, LimitKind, LimitKindError};
pub(crate) use permit::{Keeper, Release, Reserve};
pub use permit::{Permit, ReserveError};
pub(crate) use rate::Rate;
pub use spending::{BudgetPeriod, Spending};
pub(crate) use spending::{PeriodStarts, SpendingSums, SpentInPeriods};
pub use state::{BudgetRefusal, LimitReached, Refusal};
pub(crate) use state::{Reservation, ScopeState, Share, State};
pub(crate) use table::{CallerLimits, LimitTable};
