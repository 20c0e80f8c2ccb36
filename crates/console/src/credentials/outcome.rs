//! Outcomes of sign-ins, for the metrics.

use histogram::Counters;

/// The label values, in the order of `SignInOutcome`.
pub const SIGN_IN_OUTCOMES: [&str; 3] = ["succeeded", "failed", "refused"];

pub type SignInCounters = Counters<{ SIGN_IN_OUTCOMES.len() }>;

#[derive(Debug, Clone, Copy)]
pub(crate) enum SignInOutcome {
    Succeeded,
    /// A wrong password, or no such account.
    Failed,
    /// Refused without a check, because too many attempts were in flight.
    Refused,
}
