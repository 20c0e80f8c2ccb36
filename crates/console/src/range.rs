//! The time range of a page: a preset, or two dates. In whole hours, as roll-ups are.

use format::parse_date;
use store::{Period, Step};

use crate::console_request::Fields;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
const MAX_HOURLY_SLICES: u64 = 8 * 24;
const MAX_DAYS: u64 = 366;

/// Name in the query, label, and length in milliseconds.
pub(crate) const PRESETS: [(&str, &str, u64); 4] =
    [("1h", "Last hour", HOUR), ("24h", "24 hours", DAY), ("7d", "7 days", 7 * DAY), ("30d", "30 days", 30 * DAY)];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TimeRange {
    /// The preset's, or `custom`.
    pub(crate) name: &'static str,
    pub(crate) period: Period,
    /// As long, right before it: what figures are compared with.
    pub(crate) previous: Period,
    pub(crate) step: Step,
    /// When each slice starts, in milliseconds since 1970.
    pub(crate) slices: Vec<u64>,
}

impl TimeRange {
    /// The last day if the query makes no sense.
    pub(crate) fn from_query(query: &Fields, now: u64) -> Self {
        let custom = (query.get("range") == "custom").then(|| {
            let from = parse_date(query.get("from"))?;
            let to = parse_date(query.get("to"))?;
            let sound = from <= to && to - from < MAX_DAYS * DAY && from <= now;
            sound.then(|| (Period::between(from, (to + DAY - 1).min(now)), (to + DAY).min(now) - from))
        });
        let preset = PRESETS.iter().find(|(name, ..)| *name == query.get("range")).unwrap_or(&PRESETS[1]);
        let (name, period, length) = match custom.flatten() {
            Some((period, length)) => ("custom", period, length),
            None => (preset.0, Period::between(now.saturating_sub(preset.2), now), preset.2),
        };
        let hours = (period.to_millis() - period.from_millis()) / HOUR;
        let step = match query.get("by") {
            "hour" if hours <= MAX_HOURLY_SLICES => Step::Hour,
            "day" => Step::Day,
            _ if hours <= 50 => Step::Hour,
            _ => Step::Day,
        };
        let first = period.from_millis() - period.from_millis() % step.millis();
        let slices = (first..period.to_millis()).step_by(step.millis() as usize).collect();
        Self { name, period, previous: period.before(length), step, slices }
    }

    pub(crate) fn fits_hours(&self) -> bool {
        (self.period.to_millis() - self.period.from_millis()) / HOUR <= MAX_HOURLY_SLICES
    }

    pub(crate) fn previous_label(&self) -> String {
        match PRESETS.iter().find(|(name, ..)| *name == self.name) {
            Some((_, label, _)) => format!("the previous {}", label.trim_start_matches("Last ")),
            None => "the previous period".into(),
        }
    }

    /// The first and the last day, for the date inputs.
    pub(crate) fn dates(&self) -> (String, String) {
        (format::date(self.period.from_millis()), format::date(self.period.to_millis().saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(query: &str) -> TimeRange {
        TimeRange::from_query(&Fields::parse(query.as_bytes()), NOW)
    }

    /// 15 November 2025, 10:20 UTC.
    const NOW: u64 = 1_763_164_800_000 + 10 * HOUR + 20 * 60_000;

    #[test]
    fn ranges_are_whole_hours_and_have_a_time_before() {
        let day = range("range=24h");
        assert_eq!((day.period.from_millis(), day.period.to_millis()), (NOW - 20 * 60_000 - DAY, NOW + 40 * 60_000));
        assert_eq!(
            (day.previous.from_millis(), day.previous.to_millis()),
            (NOW - 20 * 60_000 - 2 * DAY, day.period.from_millis())
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
        assert_eq!(chosen.period.to_millis() - chosen.period.from_millis(), 3 * DAY);
        assert_eq!(range("range=custom&from=2025-11-14&to=2099-01-01").name, "24h", "too long");
        assert_eq!(range("range=custom&from=2025-11-14&to=2025-11-20").period.to_millis(), NOW + 40 * 60_000);
        assert_eq!(range("range=custom&from=2025-11-14&to=2025-11-01").name, "24h", "backwards");
    }
}
