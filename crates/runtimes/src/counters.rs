//! Counters of one member's requests, for the life of the process.

use std::sync::atomic::{AtomicU64, Ordering};

use chat::Completion;

use crate::member::MemberError;

#[derive(Debug, Default)]
pub(crate) struct MemberCounters {
    completed: AtomicU64,
    retried: AtomicU64,
    moved: AtomicU64,
    refused: AtomicU64,
    broken_off: AtomicU64,
    status: AtomicU64,
    malformed: AtomicU64,
    timed_out: AtomicU64,
    no_room: AtomicU64,
    bad_request: AtomicU64,
    unexpected: AtomicU64,
}

/// A member's failed requests. The fields are the metric's labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// The connection was refused or timed out.
    pub refused: u64,
    /// The connection was closed before or within the response.
    pub broken_off: u64,
    pub status: u64,
    /// Status 200 without a completion.
    pub malformed: u64,
    pub timed_out: u64,
    /// The member had no capacity. Not a fault.
    pub no_room: u64,
    /// The member rejected the request itself. Not a fault.
    pub bad_request: u64,
}

impl FailureCounts {
    /// Failures that are the member's fault.
    pub fn total(&self) -> u64 {
        self.refused + self.broken_off + self.status + self.malformed + self.timed_out
    }
}

impl MemberCounters {
    pub(crate) fn record(&self, result: &Result<Completion, MemberError>) {
        add(match result {
            // A prompt that is too long is the caller's fault, not the member's.
            Ok(_) | Err(MemberError::PromptTooLong(_)) => &self.completed,
            Err(MemberError::Connect(_)) => &self.refused,
            Err(MemberError::NoResponse { .. } | MemberError::IncompleteResponse(_)) => &self.broken_off,
            Err(MemberError::Status(_)) => &self.status,
            Err(MemberError::Refused(_)) => &self.bad_request,
            Err(MemberError::Malformed(_)) => &self.malformed,
            Err(MemberError::TimedOut) => &self.timed_out,
            Err(MemberError::Saturated { .. } | MemberError::NoCapacity { .. }) => &self.no_room,
        });
    }

    /// Counts a retry with another member after this one failed.
    pub(crate) fn retry(&self) {
        add(&self.retried);
    }

    /// Counts a request that waited too long here and was moved to another member.
    pub(crate) fn moved_away(&self) {
        add(&self.moved);
    }

    /// Counts data that was not a response to the current request.
    pub(crate) fn unexpected_response(&self) {
        add(&self.unexpected);
    }

    pub(crate) fn unexpected(&self) -> u64 {
        get(&self.unexpected)
    }

    pub(crate) fn moved(&self) -> u64 {
        get(&self.moved)
    }

    pub(crate) fn completed(&self) -> u64 {
        get(&self.completed)
    }

    pub(crate) fn retried(&self) -> u64 {
        get(&self.retried)
    }

    pub(crate) fn failures(&self) -> FailureCounts {
        FailureCounts {
            refused: get(&self.refused),
            broken_off: get(&self.broken_off),
            status: get(&self.status),
            malformed: get(&self.malformed),
            timed_out: get(&self.timed_out),
            no_room: get(&self.no_room),
            bad_request: get(&self.bad_request),
        }
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
