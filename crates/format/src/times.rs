//! Points in time, always in UTC. Milliseconds since 1970 unless a name says otherwise.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use store::Step;

fn zoned(timestamp: Result<Timestamp, jiff::Error>) -> Zoned {
    timestamp.unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC)
}

fn utc(millis: u64) -> Zoned {
    zoned(Timestamp::from_millisecond(i64::try_from(millis).unwrap_or(0)))
}

pub fn rfc3339_seconds(millis: u64) -> String {
    utc(millis).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub fn rfc3339_millis(millis: u64) -> String {
    utc(millis).strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// From microseconds since 1970, which is what a request id holds.
pub fn rfc3339_micros(micros: u64) -> String {
    let time = zoned(Timestamp::from_microsecond(i64::try_from(micros).unwrap_or(0)));
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// To the minute; without the year if that is the current one.
pub fn short_time(millis: u64, now: u64) -> String {
    let same_year = utc(millis).year() == utc(now).year();
    utc(millis).strftime(if same_year { "%-d %b, %H:%M" } else { "%-d %b %Y, %H:%M" }).to_string()
}

/// To the millisecond.
pub fn exact_time(millis: u64) -> String {
    format!("{} UTC", utc(millis).strftime("%-d %b %Y, %H:%M:%S%.3f"))
}

/// The hour or the day that begins then.
pub fn slice_name(millis: u64, step: Step) -> String {
    match step {
        Step::Hour => utc(millis).strftime("%-d %b, %H:%M").to_string(),
        Step::Day => utc(millis).strftime("%-d %b %Y (UTC)").to_string(),
    }
}

/// As a date input has it: `2025-11-15`.
pub fn date(millis: u64) -> String {
    utc(millis).strftime("%Y-%m-%d").to_string()
}

/// The start of the day that a date input holds.
pub fn parse_date(text: &str) -> Option<u64> {
    let date: jiff::civil::Date = text.parse().ok()?;
    let start = date.to_zoned(TimeZone::UTC).ok()?;
    u64::try_from(start.timestamp().as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIDNIGHT: u64 = 1_763_164_800_000;

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(rfc3339_seconds(MIDNIGHT + 999), "2025-11-15T00:00:00Z");
        assert_eq!(rfc3339_millis(MIDNIGHT + 123), "2025-11-15T00:00:00.123Z");
        assert_eq!(rfc3339_micros(MIDNIGHT * 1000), "2025-11-15T00:00:00.000000Z");
        assert_eq!(short_time(MIDNIGHT, MIDNIGHT), "15 Nov, 00:00");
        assert_eq!(short_time(MIDNIGHT, 0), "15 Nov 2025, 00:00");
        assert_eq!(exact_time(MIDNIGHT), "15 Nov 2025, 00:00:00.000 UTC");
    }

    #[test]
    fn a_date_reads_back() {
        assert_eq!(parse_date("2025-11-15"), Some(MIDNIGHT));
        assert_eq!(date(MIDNIGHT), "2025-11-15");
        assert_eq!(parse_date("15.11.2025"), None);
    }
}
