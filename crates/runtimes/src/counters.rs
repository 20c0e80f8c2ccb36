//! Counters of one member's requests, for the life of the process.

use std::sync::atomic::{AtomicU64, Ordering};

use chat::Completion;

use crate::member::MemberError;

/// What is counted. Failures come first.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// The connection was refused or timed out.
    ConnectFailed,
    /// The connection was closed before or within the response.
    ConnectionClosed,
    Status,
    /// Status 200 without a completion.
    Malformed,
    TimedOut,
    /// The member had no capacity. Not a fault.
    AtCapacity,
    /// The member rejected the request itself. Not a fault.
    BadRequest,
    Completed,
    /// The request was retried with another member after this one failed.
    Retried,
    /// The request waited too long here and was moved to another member.
    Moved,
    /// Data arrived that was not a response to the current request.
    Unexpected,
}

/// The metric's labels, in the order of `Event`. The last two are not the member's fault.
const FAILURE_REASONS: [&str; 7] =
    ["connect_failed", "connection_closed", "status", "malformed", "timed_out", "at_capacity", "bad_request"];

/// A member's failed requests, in the order of `Event`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailureCounts(pub [u64; FAILURE_REASONS.len()]);

impl FailureCounts {
    /// Failures that are the member's fault.
    pub fn total(&self) -> u64 {
        self.0[..Event::AtCapacity as usize].iter().sum()
    }

    pub fn at_capacity(&self) -> u64 {
        self.0[Event::AtCapacity as usize]
    }

    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FAILURE_REASONS.into_iter().zip(self.0)
    }
}

#[derive(Debug, Default)]
pub(crate) struct MemberCounters([AtomicU64; 11]);

impl MemberCounters {
    pub(crate) fn record(&self, result: &Result<Completion, MemberError>) {
        self.count(match result {
            // A prompt that is too long is the caller's fault, not the member's.
            Ok(_) | Err(MemberError::PromptTooLong(_)) => Event::Completed,
            Err(MemberError::Connect(_)) => Event::ConnectFailed,
            Err(MemberError::NoResponse { .. } | MemberError::IncompleteResponse(_)) => Event::ConnectionClosed,
            Err(MemberError::Status(_)) => Event::Status,
            Err(MemberError::Refused(_)) => Event::BadRequest,
            Err(MemberError::Malformed(_)) => Event::Malformed,
            Err(MemberError::TimedOut) => Event::TimedOut,
            Err(MemberError::Saturated { .. } | MemberError::NoCapacity { .. }) => Event::AtCapacity,
        });
    }

    pub(crate) fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn failures(&self) -> FailureCounts {
        FailureCounts(std::array::from_fn(|event| self.0[event].load(Ordering::Relaxed)))
    }
}
