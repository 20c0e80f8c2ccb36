//! Points in time, always in UTC.

use chat::Timestamp;
use jiff::Zoned;
use jiff::tz::TimeZone;
use store::Step;

fn zoned(timestamp: Result<jiff::Timestamp, jiff::Error>) -> Zoned {
    timestamp.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC)
}

fn utc(time: Timestamp) -> Zoned {
    zoned(jiff::Timestamp::from_millisecond(i64::try_from(time.as_millis()).unwrap_or(0)))
}

pub fn rfc3339_seconds(time: Timestamp) -> String {
    utc(time).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub fn rfc3339_millis(time: Timestamp) -> String {
    utc(time).strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// Of a time in microseconds since 1970, the resolution of request ids.
pub fn rfc3339_micros(micros: u64) -> String {
    let time = zoned(jiff::Timestamp::from_microsecond(i64::try_from(micros).unwrap_or(0)));
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// To the minute; without the year if it is the current one.
pub fn short_time(time: Timestamp, now: Timestamp) -> String {
    let same_year = utc(time).year() == utc(now).year();
    utc(time).strftime(if same_year { "%-d %b, %H:%M" } else { "%-d %b %Y, %H:%M" }).to_string()
}

/// To the millisecond.
pub fn exact_time(time: Timestamp) -> String {
    format!("{} UTC", utc(time).strftime("%-d %b %Y, %H:%M:%S%.3f"))
}

/// The name of the hour or day that starts at `time`.
pub fn slice_name(time: Timestamp, step: Step) -> String {
    match step {
        Step::Hour => utc(time).strftime("%-d %b, %H:%M").to_string(),
        Step::Day => utc(time).strftime("%-d %b %Y (UTC)").to_string(),
    }
}

/// In the format of a date input: `2025-11-15`.
pub fn date(time: Timestamp) -> String {
    utc(time).strftime("%Y-%m-%d").to_string()
}

/// The start of the day in a date input.
pub fn parse_date(text: &str) -> Option<Timestamp> {
    let date: jiff::civil::Date = text.parse().ok()?;
    let start = date.to_zoned(TimeZone::UTC).ok()?;
    u64::try_from(start.timestamp().as_millisecond()).ok().map(Timestamp::from_millis)
}

/// In the format of a date and time input: `2025-11-15T10:20`.
pub fn date_time(time: Timestamp) -> String {
    utc(time).strftime("%Y-%m-%dT%H:%M").to_string()
}

/// Parses a date, a date and time, or a time with its zone; without a zone in UTC.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let with_zone = text.parse::<jiff::Timestamp>().ok();
    let in_utc = || Some(text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp());
    let time = with_zone.or_else(in_utc)?;
    u64::try_from(time.as_millisecond()).ok().map(Timestamp::from_millis)
}

/// The start of a month such as `2026-11`, and of the next month.
pub fn month(text: &str) -> Option<(Timestamp, Timestamp)> {
    let is_month = text.len() == 7 && text.as_bytes()[4] == b'-';
    let first: jiff::civil::Date = format!("{text}-01").parse().ok().filter(|_| is_month)?;
    let next = first.checked_add(jiff::Span::new().months(1)).ok()?;
    Some((parse_date(&first.to_string())?, parse_date(&next.to_string())?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MIDNIGHT: Timestamp = Timestamp::from_millis(1_763_164_800_000);

    #[test]
    fn times_are_formatted_in_utc() {
        assert_eq!(rfc3339_seconds(MIDNIGHT + Duration::from_millis(999)), "2025-11-15T00:00:00Z");
        assert_eq!(rfc3339_millis(MIDNIGHT + Duration::from_millis(123)), "2025-11-15T00:00:00.123Z");
        assert_eq!(rfc3339_micros(MIDNIGHT.as_millis() * 1000), "2025-11-15T00:00:00.000000Z");
        assert_eq!(short_time(MIDNIGHT, MIDNIGHT), "15 Nov, 00:00");
        assert_eq!(short_time(MIDNIGHT, Timestamp::default()), "15 Nov 2025, 00:00");
        assert_eq!(exact_time(MIDNIGHT), "15 Nov 2025, 00:00:00.000 UTC");
    }

    #[test]
    fn a_date_round_trips() {
        assert_eq!(parse_date("2025-11-15"), Some(MIDNIGHT));
        assert_eq!(date(MIDNIGHT), "2025-11-15");
        assert_eq!(parse_date("15.11.2025"), None);
    }

    #[test]
    fn times_and_months_are_parsed() {
        let later = MIDNIGHT + Duration::from_secs(10 * 3_600 + 20 * 60);
        assert_eq!(date_time(later), "2025-11-15T10:20");
        for text in ["2025-11-15T10:20", "2025-11-15 10:20:00", "2025-11-15T10:20Z", "2025-11-15T11:20+01:00"] {
            assert_eq!(parse_time(text), Some(later), "{text}");
        }
        assert_eq!(parse_time("2025-11-15"), Some(MIDNIGHT));
        for wrong in ["", "yesterday", "2025-13-01", "1969-01-01", "2025-11-15T25:00"] {
            assert_eq!(parse_time(wrong), None, "{wrong}");
        }
        assert_eq!(month("2025-12"), parse_date("2025-12-01").zip(parse_date("2026-01-01")));
        for wrong in ["2025-13", "2025", "2025-1", "2025-11-", "é025-11"] {
            assert_eq!(month(wrong), None, "{wrong}");
        }
    }
}
