//! What the ledger tells when it is read: sums from the roll-ups, and single rows.

use chat::{KeyId, RequestId, TokenUsage};

use crate::latency::Latencies;
use crate::rollup::{Figures, GroundingRecord, Resolution};

/// A range of time in whole hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    from: u64,
    to: u64,
}

impl Period {
    /// From the hour that holds a time (in milliseconds since 1970) until whatever comes.
    pub fn since(millis: u64) -> Self {
        Self { from: Resolution::Hour.start_of(millis / 1000), to: Resolution::EightDays.start_of(i64::MAX as u64) }
    }

    /// From the hour that holds one time to the end of the hour that holds another, in milliseconds since 1970.
    pub fn between(from: u64, to: u64) -> Self {
        let hour = Resolution::Hour.seconds();
        let from = Resolution::Hour.start_of(from / 1000);
        Self { from, to: (Resolution::Hour.start_of(to / 1000) + hour).max(from + hour) }
    }

    /// As much time as there is between two others, up to the beginning of this one.
    pub fn before(&self, millis: u64) -> Self {
        let length = (millis / 1000).next_multiple_of(Resolution::Hour.seconds());
        Self { from: self.from.saturating_sub(length), to: self.from }
    }

    /// Its first moment, in milliseconds since 1970.
    pub fn from_millis(&self) -> u64 {
        self.from * 1000
    }

    /// Its end, in milliseconds since 1970.
    pub fn to_millis(&self) -> u64 {
        self.to * 1000
    }

    pub(crate) fn seconds(&self) -> std::ops::Range<u64> {
        self.from..self.to
    }
}

/// What is to be summed up.
#[derive(Debug, Clone, Copy)]
pub struct UsageQuery {
    /// When.
    pub period: Period,
    /// Of one key only.
    pub key: Option<KeyId>,
    /// How long a slice of time is.
    pub step: Step,
    /// Whether sums by key are wanted, too.
    pub by_key: bool,
}

impl UsageQuery {
    /// All there is, in the finest steps.
    pub(crate) fn everything() -> Self {
        Self { period: Period::since(0), key: None, step: Step::Hour, by_key: true }
    }
}

/// How long a slice of time is. Days begin at midnight UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An hour.
    Hour,
    /// A day.
    Day,
}

impl Step {
    /// Its length in milliseconds.
    pub fn millis(self) -> u64 {
        self.span().seconds() * 1000
    }

    pub(crate) fn span(self) -> Resolution {
        match self {
            Self::Hour => Resolution::Hour,
            Self::Day => Resolution::Day,
        }
    }
}

/// Sums, each grouping from the same roll-ups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageReport {
    /// The start of the first hour counted, in milliseconds since 1970.
    pub since: u64,
    /// When the report was made, in milliseconds since 1970.
    pub until: u64,
    /// Everything together.
    pub totals: Figures,
    /// How many requests succeeded.
    pub succeeded: u64,
    /// Latencies of everything together.
    pub latencies: Latencies,
    /// By status and code.
    pub by_outcome: Vec<OutcomeUsage>,
    /// By time, the oldest first; slices without requests are left out.
    pub by_time: Vec<TimeSlice>,
    /// By key, the most used first; empty unless asked for.
    pub by_key: Vec<KeyUsage>,
}

/// Sums of one slice of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimeSlice {
    /// When it begins, in milliseconds since 1970.
    pub start: u64,
    /// The sums.
    pub figures: Figures,
    /// How many of its requests succeeded.
    pub succeeded: u64,
    /// Its latencies.
    pub latencies: Latencies,
}

/// Sums of one outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeUsage {
    /// The HTTP status.
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<String>,
    /// The sums.
    pub figures: Figures,
}

/// Sums of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUsage {
    /// The key's public id.
    pub key: KeyId,
    /// What its owner calls it.
    pub name: String,
    /// The sums; `last_at` is when it was used last at all.
    pub figures: Figures,
    /// How many of its requests succeeded.
    pub succeeded: u64,
}

/// Which requests are wanted.
#[derive(Debug, Clone, Default)]
pub struct RequestQuery {
    /// Not older than this, in milliseconds since 1970.
    pub since: u64,
    /// Older than that one.
    pub before: Option<RequestId>,
    /// Of one key only.
    pub key: Option<KeyId>,
    /// With one status only.
    pub status: Option<u16>,
    /// So many at the most.
    pub limit: u32,
}

/// One recorded request. Times are microseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestRecord {
    /// The request's id.
    pub request_id: RequestId,
    /// The caller's key.
    pub key: KeyId,
    /// What the key is called.
    pub key_name: String,
    /// The HTTP status that the caller was given.
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<String>,
    /// Token figures as measured.
    pub usage: TokenUsage,
    /// From arrival to the start of work.
    pub queue_us: Option<u64>,
    /// Asking Search.
    pub search_us: Option<u64>,
    /// Waiting for the runtime.
    pub inference_us: Option<u64>,
    /// From arrival to the hand-over to the ledger.
    pub total_us: u64,
    /// Making the row durable; known a moment after the row is.
    pub persist_us: Option<u64>,
    /// What was found out about its need for facts; `None` if that was not looked at.
    pub grounding: Option<GroundingRecord>,
}

/// How long it took to make a row durable, given when it was. If the clock was set back meanwhile, the difference means
/// nothing and is left out.
pub(crate) fn persist_us(request: RequestId, total_us: u64, persisted_at_us: u64) -> Option<u64> {
    persisted_at_us.checked_sub(request.unix_micros() + total_us)
}
