//! What can be read from the ledger: sums from the roll-ups, and single rows.

use std::ops::Range;
use std::time::Duration;

use chat::{KeyId, RequestId, Timestamp, TokenUsage};

use crate::accounts::Email;
use crate::id::AccountId;
use crate::latency::Latencies;
use crate::prices::{Cost, Currency};
use crate::project::Project;
use crate::rollup::{Figures, GroundingRecord, Resolution};
use crate::viewer::Viewer;

const HOUR: u64 = Resolution::Hour.seconds();

/// A range of time in seconds. Roll-ups hold its whole hours; of hours that it cuts the rows are read.
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
        let from = Resolution::Hour.start_of(from.as_seconds());
        Self { from, to: (Resolution::Hour.start_of(to.as_seconds()) + HOUR).max(from + HOUR) }
    }

    /// From one second to another, of a second at least.
    pub fn exactly(from: Timestamp, to: Timestamp) -> Self {
        Self { from: from.as_seconds(), to: to.as_seconds().max(from.as_seconds() + 1) }
    }

    /// The period of that length that ends where this one starts.
    pub fn before(&self, length: Duration) -> Self {
        Self { from: self.from.saturating_sub(length.as_secs()), to: self.from }
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

    /// The hours that lie in the period from their first second to their last.
    pub(crate) fn whole_hours(&self) -> Range<u64> {
        let from = self.from.next_multiple_of(HOUR);
        from..Resolution::Hour.start_of(self.to).max(from)
    }

    /// The starts of the hours of which it holds a part only: none, one or two.
    pub(crate) fn cut_hours(&self) -> impl Iterator<Item = u64> + use<> {
        let [first, last] = [self.from, self.to].map(|end| (end % HOUR != 0).then(|| Resolution::Hour.start_of(end)));
        [first, last.filter(|_| first != last)].into_iter().flatten()
    }

    /// Its part of an hour.
    pub(crate) fn part_of(&self, hour: u64) -> Range<u64> {
        self.from.max(hour)..self.to.min(hour + HOUR)
    }

    /// With all of an hour that it cuts.
    pub(crate) fn widened(&self, hour: u64) -> Self {
        Self { from: self.from.min(hour), to: self.to.max(hour + HOUR) }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct UsageQuery {
    pub period: Period,
    /// Only this key.
    pub key: Option<KeyId>,
    /// The length of a time slice.
    pub step: Step,
    /// Only requests of keys that were this person's at the time. For administrators: others see their own anyway.
    pub person: Option<AccountId>,
    pub group: Option<Grouping>,
}

/// What figures are grouped by, beside the outcome. Every grouping has the same total, and its cost if there are prices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// Slices of time; their costs are computed for days only.
    Time,
    Key,
    /// The key's owner at the time of the request.
    Person,
    /// The label that the key has now.
    Project,
}

impl UsageQuery {
    /// Whose requests alone are counted.
    pub(crate) fn person_for(&self, viewer: &Viewer) -> Option<AccountId> {
        viewer.scope().copied().or(self.person)
    }

    /// Everything, in the finest steps.
    pub(crate) fn everything() -> Self {
        Self {
            period: Period::since(Timestamp::default()),
            key: None,
            step: Step::Hour,
            person: None,
            group: Some(Grouping::Key),
        }
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
    /// The first second counted.
    pub since: Timestamp,
    /// The end of the period, or when the report was made if that was earlier.
    pub until: Timestamp,
    /// Whether hours that the period cuts were counted whole, because their rows are not kept any more.
    pub is_widened: bool,
    pub totals: Figures,
    /// Successful requests.
    pub succeeded: u64,
    pub latencies: Latencies,
    pub by_outcome: Vec<OutcomeUsage>,
    /// The oldest first; slices without requests are left out.
    pub by_time: Vec<TimeSlice>,
    /// The most used first, as the other groups; empty unless asked for.
    pub by_key: Vec<KeyUsage>,
    pub by_person: Vec<PersonUsage>,
    pub by_project: Vec<ProjectUsage>,
    /// `None` if there are no prices.
    pub currency: Option<Currency>,
    /// Of all; `None` if there are no prices, or no grouping was asked for.
    pub cost: Option<Cost>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimeSlice {
    pub start: Timestamp,
    pub figures: Figures,
    /// Successful requests.
    pub succeeded: u64,
    pub latencies: Latencies,
    pub cost: Option<Cost>,
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
    pub project: Option<Project>,
    /// Whether the viewer may see the key itself: it may be somebody else's by now.
    pub is_visible: bool,
    /// Here `last_at` is when the key was last used at all.
    pub figures: Figures,
    /// Successful requests.
    pub succeeded: u64,
    pub cost: Option<Cost>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonUsage {
    /// `None` for keys that were nobody's at the time.
    pub person: Option<Person>,
    pub figures: Figures,
    /// Successful requests.
    pub succeeded: u64,
    pub cost: Option<Cost>,
}

/// Somebody with an account, as reports name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    pub id: AccountId,
    pub name: String,
    pub email: Email,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectUsage {
    /// `None` for keys without a label.
    pub project: Option<Project>,
    pub figures: Figures,
    /// Successful requests.
    pub succeeded: u64,
    pub cost: Option<Cost>,
}

#[derive(Debug, Clone, Default)]
pub struct RequestQuery {
    pub since: Timestamp,
    /// Only requests that arrived before this time.
    pub until: Option<Timestamp>,
    /// Only requests before that one.
    pub before: Option<RequestId>,
    /// Only this key.
    pub key: Option<KeyId>,
    /// Only requests of keys that were this person's at the time.
    pub person: Option<AccountId>,
    pub status: Option<StatusFilter>,
    /// Only requests that took at least so long.
    pub min_latency: Option<Duration>,
    pub limit: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFilter {
    /// This HTTP status.
    Is(u16),
    /// Any other than 200.
    Failed,
}

/// Requests that match a query, the newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestPage {
    pub rows: Vec<RecordedRequest>,
    /// Where a search stopped that would have taken long: older requests were not looked at.
    pub searched_to: Option<RequestId>,
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
