//! The time range of a page: a preset, or two dates. In whole hours, as roll-ups are.

use std::time::Duration;

use chat::Timestamp;
use format::parse_date;
use store::{Period, Step};

use crate::console_request::Fields;

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
    /// As long, right before it: what figures are compared with.
    pub(crate) previous: Period,
    pub(crate) step: Step,
    /// When each slice starts.
    pub(crate) slices: Vec<Timestamp>,
}

impl TimeRange {
    /// The last day if the query makes no sense.
    pub(crate) fn from_query(query: &Fields, now: Timestamp) -> Self {
        let custom = (query.get("range") == "custom").then(|| {
            let from = parse_date(query.get("from"))?;
            let to = parse_date(query.get("to"))?;
            let sound = from <= to && to.duration_since(from) < MAX_DAYS * DAY && from <= now;
            let last = (to + DAY).saturating_sub(Duration::from_millis(1));
            sound.then(|| (Period::between(from, last.min(now)), (to + DAY).min(now).duration_since(from)))
        });
        let preset = PRESETS.iter().find(|(name, ..)| *name == query.get("range")).unwrap_or(&PRESETS[1]);
        let (name, period, length) = match custom.flatten() {
            Some((period, length)) => ("custom", period, length),
            None => (preset.0, Period::between(now.saturating_sub(preset.2), now), preset.2),
        };
        let step = match query.get("by") {
            "hour" if period.duration() <= MAX_HOURLY_SLICES * HOUR => Step::Hour,
            "day" => Step::Day,
            _ if period.duration() <= 50 * HOUR => Step::Hour,
            _ => Step::Day,
        };
        let slices = period.slices(step).collect();
        Self { name, period, previous: period.before(length), step, slices }
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

    /// The first and the last day, for the date inputs.
    pub(crate) fn dates(&self) -> (String, String) {
        let last = self.period.end().saturating_sub(Duration::from_millis(1));
        (format::date(self.period.start()), format::date(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(query: &str) -> TimeRange {
        TimeRange::from_query(&Fields::parse(query.as_bytes()), NOW)
    }

    /// 15 November 2025, 10:20 UTC.
    const NOW: Timestamp = Timestamp::from_seconds(1_763_164_800 + 10 * 3_600 + 20 * 60);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn ranges_are_whole_hours_and_have_a_time_before() {
        let day = range("range=24h");
        assert_eq!((day.period.start(), day.period.end()), (NOW.saturating_sub(20 * MINUTE + DAY), NOW + 40 * MINUTE));
        assert_eq!(
            (day.previous.start(), day.previous.end()),
            (NOW.saturating_sub(20 * MINUTE + 2 * DAY), day.period.start())
        );
        assert_eq!((day.step, day.slices.len()), (Step::Hour, 25));
        assert_eq!(range("range=1h").slices.len(), 2);
        assert_eq!((range("range=30d").step, range("range=30d").slices.len()), (Step::Day, 31));
        assert_eq!((range("range=7d&by=hour").step, range("range=7d&by=hour").slices.len()), (Step::Hour, 169));
        assert_eq!(range("range=30d&by=hour").step, Step::Day, "too many hours for a chart");
        assert_eq!(range("nonsense").name, "24h");
    }

    #[test]
    fn chosen_dates_are_whole_days_and_never_beyond_now() {
        let chosen = range("range=custom&from=2025-11-01&to=2025-11-03");
        assert_eq!(chosen.dates(), ("2025-11-01".into(), "2025-11-03".into()));
        assert_eq!(chosen.period.duration(), 3 * DAY);
        assert_eq!(range("range=custom&from=2025-11-14&to=2099-01-01").name, "24h", "too long");
        assert_eq!(range("range=custom&from=2025-11-14&to=2025-11-20").period.end(), NOW + 40 * MINUTE);
        assert_eq!(range("range=custom&from=2025-11-14&to=2025-11-01").name, "24h", "backwards");
    }
}
