//! How figures and times look. Times are written in UTC, which a page says where there is no script; otherwise the
//! script turns them into the viewer's own, which are as wide.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{Markup, html};
use store::{Figures, Measured};

/// Milliseconds since 1970, now.
pub(crate) fn now() -> u64 {
    Timestamp::now().as_millisecond().max(0) as u64
}

/// A number in groups of three digits.
pub(crate) fn number(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// A large number in few characters, for axes.
pub(crate) fn short_number(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{}B", tidy(value / 1e9)),
        value if value >= 1e6 => format!("{}M", tidy(value / 1e6)),
        value if value >= 1e3 => format!("{}k", tidy(value / 1e3)),
        value => tidy(value),
    }
}

fn tidy(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A duration with the unit that suits it.
pub(crate) fn duration(duration: Duration) -> String {
    micros(duration.as_micros() as f64)
}

/// Microseconds with the unit that suits them.
pub(crate) fn micros(micros: f64) -> String {
    match micros {
        micros if micros < 1_000.0 => format!("{micros:.0} µs"),
        micros if micros < 1_000_000.0 => format!("{:.1} ms", micros / 1_000.0),
        micros => format!("{:.2} s", micros / 1_000_000.0),
    }
}

/// A sum of token figures: a dash if none was measured, and of how many it was unless of all.
pub(crate) fn measured(figure: Measured, requests: u64) -> Markup {
    html! {
        @match figure.get() {
            None => span.quiet title="not measured for any request" { "–" },
            Some(sum) => {
                (number(sum))
                @if figure.count != requests {
                    " " span.quiet.small { (number(figure.count)) " of " (number(requests)) " measured" }
                }
            }
        }
    }
}

/// How many of a group's requests failed.
pub(crate) fn failed(figures: &Figures, succeeded: u64) -> u64 {
    figures.requests.saturating_sub(succeeded)
}

fn at(millis: u64) -> jiff::Zoned {
    let timestamp = Timestamp::from_millisecond(i64::try_from(millis).unwrap_or(0)).unwrap_or(Timestamp::UNIX_EPOCH);
    timestamp.to_zoned(TimeZone::UTC)
}

/// A time to the minute, the exact one on hover.
pub(crate) fn time(millis: u64) -> Markup {
    let exact = format!("{} UTC", at(millis).strftime("%-d %b %Y, %H:%M:%S%.3f"));
    // The year goes without saying if it is this one.
    let format = if at(millis).year() == at(now()).year() { "%-d %b, %H:%M" } else { "%-d %b %Y, %H:%M" };
    html! { time datetime=(rfc3339(millis)) title=(exact) data-local { (at(millis).strftime(format).to_string()) } }
}

/// The same, or a word instead.
pub(crate) fn time_or(millis: Option<u64>, word: &str) -> Markup {
    match millis {
        Some(millis) => time(millis),
        None => html! { span.quiet { (word) } },
    }
}

/// A time for machines.
pub(crate) fn rfc3339(millis: u64) -> String {
    at(millis).strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// What an hour or a day is called.
pub(crate) fn slice_name(millis: u64, step: store::Step) -> String {
    match step {
        store::Step::Hour => at(millis).strftime("%-d %b, %H:%M").to_string(),
        store::Step::Day => at(millis).strftime("%-d %b %Y (UTC)").to_string(),
    }
}

/// As a date input writes it.
pub(crate) fn date(millis: u64) -> String {
    at(millis).strftime("%Y-%m-%d").to_string()
}

/// Reads a date input; the start of that day, UTC.
pub(crate) fn parse_date(text: &str) -> Option<u64> {
    let date: jiff::civil::Date = text.parse().ok()?;
    let zoned = date.to_zoned(TimeZone::UTC).ok()?;
    u64::try_from(zoned.timestamp().as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_times_are_written_for_people() {
        assert_eq!([number(0), number(999), number(1_234_567)], ["0", "999", "1,234,567"]);
        assert_eq!([short_number(950.0), short_number(1_500.0), short_number(2e6)], ["950", "1.5k", "2M"]);
        assert_eq!([micros(12.0), micros(1_500.0), micros(2_500_000.0)], ["12 µs", "1.5 ms", "2.50 s"]);
        assert_eq!(rfc3339(1_763_164_800_123), "2025-11-15T00:00:00.123Z");
        assert_eq!(parse_date("2025-11-15"), Some(1_763_164_800_000));
        assert_eq!(date(1_763_164_800_000), "2025-11-15");
        assert_eq!(parse_date("15.11.2025"), None);
        let some = measured(Measured { sum: 1200, count: 3 }, 4).into_string();
        assert!(some.contains("1,200") && some.contains("3 of 4 measured"), "{some}");
    }
}
