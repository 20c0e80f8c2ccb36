//! Limits of a key, a person, each person or everyone: may this request run?
//!
//! A request reserves what it can use at most, in one step that decides over all of its scopes (`state`): what was spent,
//! what is reserved and what it asks for must fit every budget. The commit of its row adds what it used to `spending` and
//! ends the reservation. So a budget is never overshot, and nothing is counted twice. Requests per minute and in flight
//! are decided in the same step.
//!
//! With SQLite one process serves, and keeps the state in memory. With PostgreSQL replicas share it in tables, and decide
//! while they hold the rows of the limits in question (`postgres::limits`). Callers without limits pass untouched.

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
pub(crate) use spending::{PeriodStarts, RecordedSpending, ScopeRange, SpendingSums, SpentInPeriods};
pub use state::{BudgetRefusal, LimitReached, Refusal};
pub(crate) use state::{Reservation, ScopeState, Share, State};
pub(crate) use table::{CallerLimits, LimitTable};
