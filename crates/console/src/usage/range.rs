//! The time range of a page: a preset in whole hours, as roll-ups are, or two times.

use std::time::Duration;

use chat::Timestamp;
use format::parse_time;
use store::{Period, Step};

use crate::page::{Fields, parse_end};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = days(1);
const MAX_HOURLY_SLICES: u32 = 8 * 24;
const MAX_DAYS: u32 = 366;

const fn days(count: u64) -> Duration {
    Duration::from_secs(count * 86_400)
}

/// Name in the query, label, and length.
pub(crate) const PRESETS: [(&str, &str, Duration); 4] =
    [("1h", "Last hour", HOUR), ("24h", "24 hours", DAY), ("7d", "7 days", days(7)), ("30d", "30 days", days(30))];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TimeRange {
    /// The preset's, or `custom`.
    pub(crate) name: &'static str,
    pub(crate) period: Period,
    /// The period of the same length right before, which figures are compared with.
    pub(crate) previous: Period,
    pub(crate) step: Step,
    /// When each slice starts.
    pub(crate) slices: Vec<Timestamp>,
}

/// Errors of a custom range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RangeError {
    #[error("Enter both times as a date and a time, such as 2026-11-15T10:20.")]
    Malformed,
    #[error("The range ends before it begins.")]
    Reversed,
    #[error("The range begins in the future.")]
    Future,
    #[error("A range has at most {MAX_DAYS} days.")]
    TooLong,
}

impl TimeRange {
    /// A preset, by default the last day; or two times, exact to the minute.
    pub(crate) fn from_query(query: &Fields, now: Timestamp) -> Result<Self, RangeError> {
        let preset = PRESETS.iter().find(|(name, ..)| *name == query.get("range")).unwrap_or(&PRESETS[1]);
        let (name, period, length) = match query.get("range") {
            "custom" => {
                let (from, to) = chosen_times(query, now)?;
                // Nothing was recorded after now, so the current hour need not be cut.
                let end = if to >= now { Period::between(from, now).end() } else { to };
                ("custom", Period::exactly(from, end), to.min(now).duration_since(from))
            }
            _ => {
                let period = Period::between(now.saturating_sub(preset.2), now);
                (preset.0, period, now.duration_since(period.start()))
            }
        };
        let step = match query.get("by") {
            "hour" if period.duration() <= MAX_HOURLY_SLICES * HOUR => Step::Hour,
            "day" => Step::Day,
            _ if period.duration() <= 50 * HOUR => Step::Hour,
            _ => Step::Day,
        };
        let slices = period.slices(step).collect();
        Ok(Self { name, period, previous: period.before(length), step, slices })
    }

    pub(crate) fn fits_hours(&self) -> bool {
        self.period.duration() <= MAX_HOURLY_SLICES * HOUR
    }

    pub(crate) fn previous_label(&self) -> String {
        match PRESETS.iter().find(|(name, ..)| *name == self.name) {
            Some((_, label, _)) => format!("the previous {}", label.trim_start_matches("Last ")),
            None => "the previous period".into(),
        }
    }

    /// Both ends, for the inputs.
    pub(crate) fn ends(&self, now: Timestamp) -> (String, String) {
        (format::date_time(self.period.start()), format::date_time(self.period.end().min(now)))
    }
}

fn chosen_times(query: &Fields, now: Timestamp) -> Result<(Timestamp, Timestamp), RangeError> {
    let from = parse_time(query.get("from")).ok_or(RangeError::Malformed)?;
    let to = parse_end(query.get("to")).ok_or(RangeError::Malformed)?;
    match () {
        () if from > now => Err(RangeError::Future),
        () if to <= from => Err(RangeError::Reversed),
        () if to.min(now).duration_since(from) > MAX_DAYS * DAY => Err(RangeError::TooLong),
        () => Ok((from, to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(query: &str) -> Result<TimeRange, RangeError> {
        TimeRange::from_query(&Fields::parse(query.as_bytes()), NOW)
    }

    fn range(query: &str) -> TimeRange {
        chosen(query).unwrap()
    }

    /// 15 November 2025, 10:20 UTC.
    const NOW: Timestamp = Timestamp::from_seconds(1_763_164_800 + 10 * 3_600 + 20 * 60);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn presets_are_whole_hours_with_a_previous_period() {
        let day = range("range=24h");
        assert_eq!((day.period.start(), day.period.end()), (NOW.saturating_sub(20 * MINUTE + DAY), NOW + 40 * MINUTE));
        assert_eq!(
            (day.previous.start(), day.previous.end()),
            (NOW.saturating_sub(40 * MINUTE + 2 * DAY), day.period.start()),
            "the same length as from the start of the period to now"
        );
        assert_eq!((day.step, day.slices.len()), (Step::Hour, 25));
        assert_eq!(range("range=1h").slices.len(), 2);
        assert_eq!((range("range=30d").step, range("range=30d").slices.len()), (Step::Day, 31));
        assert_eq!((range("range=7d&by=hour").step, range("range=7d&by=hour").slices.len()), (Step::Hour, 169));
        assert_eq!(range("range=30d&by=hour").step, Step::Day, "too many hours for a chart");
        assert_eq!(range("nonsense").name, "24h");
    }

    #[test]
    fn chosen_dates_are_whole_days_and_compared_up_to_now() {
        let chosen = range("range=custom&from=2025-11-01&to=2025-11-03");
        assert_eq!(chosen.ends(NOW), ("2025-11-01T00:00".into(), "2025-11-04T00:00".into()));
        assert_eq!((chosen.period.duration(), chosen.previous.duration()), (3 * DAY, 3 * DAY));
        let until_now = range("range=custom&from=2025-11-14&to=2099-01-01");
        assert_eq!(until_now.period.end(), NOW + 40 * MINUTE);
        assert_eq!(until_now.previous.duration(), DAY + 10 * HOUR + 20 * MINUTE);
    }

    #[test]
    fn chosen_times_are_exact() {
        let chosen = range("range=custom&from=2025-11-14T09:05&to=2025-11-14T11:50");
        assert_eq!(chosen.ends(NOW), ("2025-11-14T09:05".into(), "2025-11-14T11:50".into()));
        assert_eq!(
            chosen.previous,
            Period::exactly(chosen.period.start().saturating_sub(165 * MINUTE), chosen.period.start())
        );
        assert_eq!(chosen.slices.len(), 3);
    }

    #[test]
    fn invalid_ranges_are_refused_with_the_reason() {
        for (query, error) in [
            ("from=2025-11-14&to=2025-11-01", RangeError::Reversed),
            ("from=2025-11-14T10:00&to=2025-11-14T10:00", RangeError::Reversed),
            ("from=2025-11-16&to=2025-11-17", RangeError::Future),
            ("from=2024-01-01&to=2025-11-01", RangeError::TooLong),
            ("from=yesterday&to=2025-11-01", RangeError::Malformed),
            ("from=2025-11-01", RangeError::Malformed),
        ] {
            assert_eq!(chosen(&format!("range=custom&{query}")), Err(error), "{query}");
        }
    }
}
