//! Which time a page is about: the last hours or days, or dates that somebody chose. In whole hours, as roll-ups are.

use format::parse_date;
use store::{Period, Step};

use crate::visit::Fields;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
/// Hours that a chart can show one by one.
const MOST_HOURS: u64 = 8 * 24;
/// Days that can be asked for.
const MOST_DAYS: u64 = 366;

/// The choices, with what they are called and how long they are.
pub(crate) const CHOICES: [(&str, &str, u64); 4] =
    [("1h", "Last hour", HOUR), ("24h", "24 hours", DAY), ("7d", "7 days", 7 * DAY), ("30d", "30 days", 30 * DAY)];

/// A time that a page is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    /// Its name in the query.
    pub(crate) name: &'static str,
    pub(crate) period: Period,
    /// Just as long, right before it.
    pub(crate) before: Period,
    pub(crate) step: Step,
    /// Slices that there may be, the first one's start first.
    pub(crate) slices: Vec<u64>,
}

impl Range {
    /// What a query asks for; whatever cannot be read is the last day.
    pub(crate) fn of(query: &Fields, now: u64) -> Self {
        let custom = (query.get("range") == "custom").then(|| {
            let from = parse_date(query.get("from"))?;
            let to = parse_date(query.get("to"))?;
            let sound = from <= to && to - from < MOST_DAYS * DAY && from <= now;
            sound.then(|| (Period::between(from, (to + DAY - 1).min(now)), (to + DAY).min(now) - from))
        });
        let choice = CHOICES.iter().find(|(name, ..)| *name == query.get("range")).unwrap_or(&CHOICES[1]);
        let (name, period, length) = match custom.flatten() {
            Some((period, length)) => ("custom", period, length),
            None => (choice.0, Period::between(now.saturating_sub(choice.2), now), choice.2),
        };
        let hours = (period.to_millis() - period.from_millis()) / HOUR;
        let step = match query.get("by") {
            "hour" if hours <= MOST_HOURS => Step::Hour,
            "day" => Step::Day,
            _ if hours <= 50 => Step::Hour,
            _ => Step::Day,
        };
        let first = period.from_millis() - period.from_millis() % step.millis();
        let slices = (first..period.to_millis()).step_by(step.millis() as usize).collect();
        Self { name, period, before: period.before(length), step, slices }
    }

    /// Whether hours can be shown one by one.
    pub(crate) fn fits_hours(&self) -> bool {
        (self.period.to_millis() - self.period.from_millis()) / HOUR <= MOST_HOURS
    }

    /// What it is compared with.
    pub(crate) fn before_name(&self) -> String {
        match CHOICES.iter().find(|(name, ..)| *name == self.name) {
            Some((_, called, _)) => format!("the {} before", called.trim_start_matches("Last ")),
            None => "as much time before".into(),
        }
    }

    /// The first and the last day, for date inputs.
    pub(crate) fn dates(&self) -> (String, String) {
        (format::date(self.period.from_millis()), format::date(self.period.to_millis().saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(query: &str) -> Range {
        Range::of(&Fields::parse(query.as_bytes()), NOW)
    }

    /// 15 November 2025, 10:20 UTC.
    const NOW: u64 = 1_763_164_800_000 + 10 * HOUR + 20 * 60_000;

    #[test]
    fn ranges_are_whole_hours_and_have_a_time_before() {
        let day = range("range=24h");
        assert_eq!((day.period.from_millis(), day.period.to_millis()), (NOW - 20 * 60_000 - DAY, NOW + 40 * 60_000));
        assert_eq!(
            (day.before.from_millis(), day.before.to_millis()),
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
