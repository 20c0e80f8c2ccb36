//! What can be read from the ledger: sums from the roll-ups, and single rows.

use std::time::Duration;

use chat::{KeyId, RequestId, Timestamp, TokenUsage};

use crate::latency::Latencies;
use crate::rollup::{Figures, GroundingRecord, Resolution};

/// A range of time in whole hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    from: u64,
    to: u64,
}

impl Period {
    /// From the hour of a time, without an end.
    pub fn since(time: Timestamp) -> Self {
        Self { from: Resolution::Hour.start_of(time.as_seconds()), to: Resolution::EightDays.start_of(i64::MAX as u64) }
    }

    /// From the hour of one time to the end of the hour of another.
    pub fn between(from: Timestamp, to: Timestamp) -> Self {
        let hour = Resolution::Hour.seconds();
        let from = Resolution::Hour.start_of(from.as_seconds());
        Self { from, to: (Resolution::Hour.start_of(to.as_seconds()) + hour).max(from + hour) }
    }

    /// The period of that length, in whole hours, that ends where this one starts.
    pub fn before(&self, length: Duration) -> Self {
        let length = length.as_secs().next_multiple_of(Resolution::Hour.seconds());
        Self { from: self.from.saturating_sub(length), to: self.from }
    }

    pub fn start(&self) -> Timestamp {
        Timestamp::from_seconds(self.from)
    }

    pub fn end(&self) -> Timestamp {
        Timestamp::from_seconds(self.to)
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.to - self.from)
    }

    /// The starts of the time slices. Slices are aligned to UTC, so the first may start before the period.
    pub fn slices(&self, step: Step) -> impl Iterator<Item = Timestamp> {
        let first = step.resolution().start_of(self.from);
        (first..self.to).step_by(step.resolution().seconds() as usize).map(Timestamp::from_seconds)
    }

    pub(crate) fn seconds(&self) -> std::ops::Range<u64> {
        self.from..self.to
    }
}

#[derive(Debug, Clone, Copy)]
pub struct UsageQuery {
    pub period: Period,
    /// Only this key.
    pub key: Option<KeyId>,
    /// The length of a time slice.
    pub step: Step,
    /// Whether to sum by key, too.
    pub by_key: bool,
}

impl UsageQuery {
    /// Everything, in the finest steps.
    pub(crate) fn everything() -> Self {
        Self { period: Period::since(Timestamp::default()), key: None, step: Step::Hour, by_key: true }
    }
}

/// The length of a time slice. Days start at midnight UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Hour,
    Day,
}

impl Step {
    pub(crate) fn resolution(self) -> Resolution {
        match self {
            Self::Hour => Resolution::Hour,
            Self::Day => Resolution::Day,
        }
    }
}

/// Sums of one period. All groupings come from the same roll-ups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageReport {
    /// The start of the first hour counted.
    pub since: Timestamp,
    /// When the report was made.
    pub until: Timestamp,
    pub totals: Figures,
    /// Successful requests.
    pub succeeded: u64,
    pub latencies: Latencies,
    pub by_outcome: Vec<OutcomeUsage>,
    /// The oldest first; slices without requests are left out.
    pub by_time: Vec<TimeSlice>,
    /// The most used first; empty unless asked for.
    pub by_key: Vec<KeyUsage>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimeSlice {
    pub start: Timestamp,
    pub figures: Figures,
    /// Successful requests.
    pub succeeded: u64,
    pub latencies: Latencies,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeUsage {
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<String>,
    pub figures: Figures,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUsage {
    pub key: KeyId,
    pub name: String,
    /// Here `last_at` is when the key was last used at all.
    pub figures: Figures,
    /// Successful requests.
    pub succeeded: u64,
}

#[derive(Debug, Clone, Default)]
pub struct RequestQuery {
    pub since: Timestamp,
    /// Only requests before that one.
    pub before: Option<RequestId>,
    /// Only this key.
    pub key: Option<KeyId>,
    /// Only this HTTP status.
    pub status: Option<u16>,
    pub limit: u32,
}

/// One recorded request. Times are microseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRequest {
    pub request_id: RequestId,
    pub key: KeyId,
    pub key_name: String,
    /// The HTTP status that the caller got.
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<String>,
    /// Measured token counts.
    pub usage: TokenUsage,
    /// From arrival to the start of work.
    pub queue_us: Option<u64>,
    /// Asking Search.
    pub search_us: Option<u64>,
    /// Waiting for the runtime.
    pub inference_us: Option<u64>,
    /// From arrival until the row was queued.
    pub total_us: u64,
    /// Making the row durable. Known shortly after the commit.
    pub persist_us: Option<u64>,
    /// `None` if grounding was not considered.
    pub grounding: Option<GroundingRecord>,
}

/// How long it took to make a row durable. `None` if the clock was set back meanwhile.
pub(crate) fn persist_us(request: RequestId, total_us: u64, persisted_at_us: u64) -> Option<u64> {
    persisted_at_us.checked_sub(request.unix_micros() + total_us)
}
