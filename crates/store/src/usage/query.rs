//! Queries on the ledger and their results: sums from the roll-ups, and single rows.

use std::ops::Range;
use std::time::Duration;

use chat::{KeyId, RequestId, Timestamp, TokenUsage};

use crate::usage::cost::Cost;
use crate::usage::latency::Latencies;
use crate::usage::rollup::{Figures, GroundingRecord, InferenceRecord, Part, Resolution, RollupKey};
use crate::values::{AccountId, Currency, Email, Project, Scope, Viewer};

const HOUR: u64 = Resolution::Hour.seconds();

/// A range of time in seconds. Its whole hours are read from roll-ups, and hours that it cuts from rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    from: u64,
    to: u64,
}

impl Period {
    /// From the start of the hour of a time, without an end.
    pub fn since(time: Timestamp) -> Self {
        Self { from: Resolution::Hour.start_of(time.as_seconds()), to: Resolution::EightDays.start_of(i64::MAX as u64) }
    }

    /// From the hour of one time to the end of the hour of another.
    pub fn between(from: Timestamp, to: Timestamp) -> Self {
        let from = Resolution::Hour.start_of(from.as_seconds());
        Self { from, to: (Resolution::Hour.start_of(to.as_seconds()) + HOUR).max(from + HOUR) }
    }

    /// From one second to another; at least a second long.
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

    /// The hours that lie entirely in the period.
    pub(crate) fn whole_hours(&self) -> Range<u64> {
        let from = self.from.next_multiple_of(HOUR);
        from..Resolution::Hour.start_of(self.to).max(from)
    }

    /// The starts of the hours that lie only partly in the period: none, one or two.
    pub(crate) fn cut_hours(&self) -> impl Iterator<Item = u64> + use<> {
        let [first, last] = [self.from, self.to].map(|end| (end % HOUR != 0).then(|| Resolution::Hour.start_of(end)));
        [first, last.filter(|_| first != last)].into_iter().flatten()
    }

    /// The part of an hour that lies in the period.
    pub(crate) fn part_of(&self, hour: u64) -> Range<u64> {
        self.from.max(hour)..self.to.min(hour + HOUR)
    }

    /// The period extended to a whole hour that it cuts.
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
    /// Only requests of keys that belonged to this person at that time. For administrators: others see only their own.
    pub person: Option<AccountId>,
    pub group: Option<Grouping>,
}

/// How figures are grouped, besides by outcome. Every grouping has the same total, and the same cost if there are prices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// Slices of time; their costs are computed for days only.
    Time,
    Key,
    /// The key's owner at the time of the request.
    Person,
    /// The key's project at the time of the request.
    Project,
}

impl UsageQuery {
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
    /// The end of the period, or the time of the report if that is earlier.
    pub until: Timestamp,
    /// Whether hours that the period cuts were counted whole, because their rows were deleted.
    pub is_widened: bool,
    pub totals: Figures,
    /// Successful requests.
    pub succeeded: u64,
    /// Latencies of completions: requests that are rejected within microseconds would distort them.
    pub latencies: Latencies,
    pub failed_latencies: Latencies,
    pub by_outcome: Vec<UsageGroup>,
    /// The oldest first; slices without requests are omitted.
    pub by_time: Vec<UsageGroup>,
    /// By key, person or project, the most used first; empty unless requested.
    pub groups: Vec<UsageGroup>,
    /// `None` if there are no prices.
    pub currency: Option<Currency>,
    /// The total; `None` if there are no prices, or no grouping was requested.
    pub cost: Option<Cost>,
}

impl UsageReport {
    /// Latencies of all requests, of any outcome.
    pub fn all_latencies(&self) -> Latencies {
        let mut all = self.latencies.clone();
        all.merge(&self.failed_latencies);
        all
    }
}

/// Requests that have something in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageGroup {
    pub label: GroupLabel,
    /// For a key, `last_at` is its last use at any time, not only in the period.
    pub figures: Figures,
    /// Successful requests.
    pub succeeded: u64,
    /// Latencies of completions; only of slices of time.
    pub latencies: Latencies,
    /// `None` if there are no prices, or it is not computed for this label.
    pub cost: Option<Cost>,
}

impl UsageGroup {
    pub(crate) fn new(label: GroupLabel, figures: Figures, succeeded: u64) -> Self {
        Self { label, figures, succeeded, latencies: Latencies::default(), cost: None }
    }

    /// The start of a slice of time.
    pub fn start(&self) -> Option<Timestamp> {
        if let GroupLabel::Time(start) = self.label { Some(start) } else { None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupLabel {
    /// The start of an hour or a day.
    Time(Timestamp),
    Key(UsedKey),
    /// `None` for keys that had no owner at that time.
    Person(Option<Person>),
    /// `None` for keys that had no project at that time.
    Project(Option<Project>),
    /// The status, and the error's code; `None` for a success.
    Outcome(u16, Option<String>),
}

/// A former owner sees this instead of the name of a key.
pub(crate) const GIVEN_AWAY: &str = "given to another person";

/// A key in a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedKey {
    pub id: KeyId,
    pub name: String,
    pub project: Option<Project>,
    /// Whether the viewer may see the key itself: it may have been given to another person.
    pub is_visible: bool,
}

/// A person in a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    pub id: AccountId,
    pub name: String,
    pub email: Email,
}

/// The requests that a report counts or a search scans: of everyone, of a person, or of a key and its owner at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestScope {
    pub(crate) scope: Scope,
    /// For a key only; `None` for all owners.
    pub(crate) owner: Option<AccountId>,
}

impl RequestScope {
    /// People other than administrators see the requests that they made.
    pub(crate) fn new(viewer: &Viewer, key: Option<KeyId>, person: Option<AccountId>) -> Self {
        match (key, viewer.scope().copied().or(person)) {
            (Some(key), owner) => Self { scope: Scope::Key(key), owner },
            (None, Some(person)) => Self { scope: Scope::Owner(person), owner: None },
            (None, None) => Self { scope: Scope::Everyone, owner: None },
        }
    }

    pub(crate) fn key(self) -> Option<KeyId> {
        if let Scope::Key(key) = self.scope { Some(key) } else { None }
    }

    pub(crate) fn person(self) -> Option<AccountId> {
        if let Scope::Owner(person) = self.scope { Some(person) } else { self.owner }
    }

    /// Whether a roll-up is in it.
    pub(crate) fn counts(self, rollup: &RollupKey) -> bool {
        rollup.scope == self.scope && self.owner.is_none_or(|owner| rollup.owner == Some(owner))
    }

    /// Whether a part is in it.
    pub(crate) fn contains(self, part: &Part) -> bool {
        self.key().is_none_or(|key| part.key == key) && self.person().is_none_or(|person| part.owner == Some(person))
    }
}

#[derive(Debug, Clone, Default)]
pub struct RequestQuery {
    pub since: Timestamp,
    /// Only requests that arrived before this time.
    pub until: Option<Timestamp>,
    /// Only requests before this one.
    pub before: Option<RequestId>,
    /// Only this key.
    pub key: Option<KeyId>,
    /// Only requests of keys that belonged to this person at that time.
    pub person: Option<AccountId>,
    pub status: Option<StatusFilter>,
    /// Only requests that took at least this long.
    pub min_latency: Option<Duration>,
    pub limit: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFilter {
    /// This HTTP status.
    Is(u16),
    /// Any status other than 200.
    Failed,
}

/// Requests that match a query, the newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestPage {
    pub rows: Vec<RecordedRequest>,
    /// Where a long search stopped: older requests were not scanned.
    pub searched_to: Option<RequestId>,
}

/// One recorded request. Times are microseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRequest {
    pub request_id: RequestId,
    pub key: KeyId,
    pub key_name: String,
    /// Whether the viewer may see the key itself: it may have been given to another person.
    pub is_key_visible: bool,
    /// The HTTP status that was returned to the caller.
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<String>,
    /// Measured token counts.
    pub usage: TokenUsage,
    /// From arrival to the start of work.
    pub queue_us: Option<u64>,
    /// The request to Search.
    pub search_us: Option<u64>,
    /// The wait for the runtime.
    pub inference_us: Option<u64>,
    /// From arrival until the row was queued.
    pub total_us: u64,
    /// The commit of the row. Known shortly afterwards.
    pub persist_us: Option<u64>,
    /// `None` if grounding was not considered.
    pub grounding: Option<GroundingRecord>,
    pub inference: InferenceRecord,
}

/// The time that making a row durable took. `None` if the clock was set back meanwhile.
pub(crate) fn persist_us(request: RequestId, total_us: u64, persisted_at_us: u64) -> Option<u64> {
    persisted_at_us.checked_sub(request.unix_micros() + total_us)
}
