//! Lenient parsing of dates as documents and search servers write them. A text that is not clearly a date is none, without
//! guesses.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

/// Smaller numbers are years, days or zeros, not Unix times.
const MIN_UNIX_SECONDS: i64 = 100_000_000;
/// As seconds, this would be after the year 5000: from here on a number counts milliseconds.
const MIN_UNIX_MILLISECONDS: i64 = 100_000_000_000;
/// Earlier years are placeholders such as `0001-01-01`.
const MIN_YEAR: i16 = 1000;

/// The day of `2024-05-01`, `2024-05-01T08:00:00+02:00`, `2024/5/1`, `20240501…` or, as PDF writes it,
/// `D:20240501120000+02'00'`.
pub(crate) fn parse_date(text: &str) -> Option<Date> {
    let text = text.trim().trim_matches(['"', '\'']);
    let text = text.strip_prefix("D:").unwrap_or(text);
    match text.chars().nth(4)? {
        separator @ ('-' | '/' | '.') => {
            let mut parts = text.splitn(3, separator);
            let (year, month, rest) = (parts.next()?, parts.next()?, parts.next()?);
            let day = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
            date(digits(year)?, digits(month)?, digits(day)?)
        }
        _ => date(digits(text.get(..4)?)?, digits(text.get(4..6)?)?, digits(text.get(6..8)?)?),
    }
}

/// The day of a date, or of a Unix time in seconds or milliseconds, whether written as a text or as a number.
pub(crate) fn parse_date_or_unix_time(text: &str) -> Option<Date> {
    let text = text.trim();
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => date_from_number(text.parse().ok()?),
        false => parse_date(text),
    }
}

/// The day of a Unix time in seconds or milliseconds, or of digits such as 20240501.
pub(crate) fn date_from_number(number: i64) -> Option<Date> {
    let timestamp = match number {
        10_000_101..=99_991_231 => return date(number / 10_000, number / 100 % 100, number % 100),
        MIN_UNIX_SECONDS..MIN_UNIX_MILLISECONDS => Timestamp::from_second(number),
        MIN_UNIX_MILLISECONDS.. => Timestamp::from_millisecond(number),
        _ => return None,
    };
    Some(Offset::UTC.to_datetime(timestamp.ok()?).date())
}

fn digits(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn date(year: i64, month: i64, day: i64) -> Option<Date> {
    let year = i16::try_from(year).ok().filter(|year| *year >= MIN_YEAR)?;
    Date::new(year, month.try_into().ok()?, day.try_into().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    #[test]
    fn dates_are_read_as_they_are_written() {
        let day = date(2024, 5, 1);
        for text in [
            "2024-05-01",
            " 2024-05-01 ",
            " \"2024-05-01\" ",
            "2024-05-01T23:59:59",
            "2024-05-01T23:59:59.123456+02:00",
            "2024-05-01T00:00:00Z",
            "2024-05-01 10:00:00",
            "2024/05/01",
            "2024/5/1 10:00",
            "20240501",
            "D:20240501081500+01'00'",
        ] {
            assert_eq!(parse_date(text), Some(day), "{text}");
            assert_eq!(parse_date_or_unix_time(text), Some(day), "{text}");
        }
        assert_eq!(parse_date("2024/12/31"), Some(date(2024, 12, 31)));
        assert_eq!(parse_date("1066-10-14"), Some(date(1066, 10, 14)));
    }

    #[test]
    fn unix_times_are_read_as_texts_and_as_numbers() {
        let day = date(2024, 5, 1);
        assert_eq!(parse_date_or_unix_time("1714550400"), Some(day));
        assert_eq!(parse_date_or_unix_time("1714550400000"), Some(day));
        assert_eq!(date_from_number(1_714_550_400_000), Some(day));
        assert_eq!(date_from_number(1_714_521_599_999), Some(date(2024, 4, 30)));
    }

    #[test]
    fn other_texts_are_not_dates() {
        for text in [
            "", "yesterday", "May 2024", "2024", "2024-05", "2024-13-01", "2024-02-30", "2024-05-", "2024-05/01",
            "0001-01-01T00:00:00Z", "20241301", "99999999999999999999", "日本-05-01", "日本語です-05-01", "äöüäöüäö",
            "0",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
            assert_eq!(parse_date_or_unix_time(text), None, "{text}");
        }
        for number in [0, -1, 2024, 12_345, i64::MAX, i64::MIN] {
            assert_eq!(date_from_number(number), None, "{number}");
        }
    }
}
