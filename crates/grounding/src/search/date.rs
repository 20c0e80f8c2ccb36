//! Dates as other people's documents have them, read generously. What is no date is no date; nothing is guessed.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

/// Numbers below are no times: years, days and mere zeros are stored as numbers too.
const LEAST_SECONDS: i64 = 100_000_000;
/// From here on a number counts milliseconds: as seconds it would be after the year 5000.
const LEAST_MILLISECONDS: i64 = 100_000_000_000;

/// The day out of a text such as `2024-05-01`, `2024-05-01T08:00:00+02:00`, `2024/5/1`, `20240501` or `1714550400000`.
pub(super) fn of_text(text: &str) -> Option<Date> {
    let text = text.trim();
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return of_number(text.parse().ok()?);
    }
    let separator = text.chars().nth(4).filter(|separator| matches!(separator, '-' | '/'))?;
    let mut parts = text.splitn(3, separator);
    let (year, month, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let day = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
    ymd(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?)
}

/// The day out of milliseconds or seconds since 1970, or out of digits such as 20240501.
pub(super) fn of_number(number: i64) -> Option<Date> {
    let timestamp = match number {
        10_000_101..=99_991_231 => return ymd(number / 10_000, number / 100 % 100, number % 100),
        LEAST_SECONDS..LEAST_MILLISECONDS => Timestamp::from_second(number),
        LEAST_MILLISECONDS.. => Timestamp::from_millisecond(number),
        _ => return None,
    };
    Some(Offset::UTC.to_datetime(timestamp.ok()?).date())
}

fn ymd(year: i64, month: i64, day: i64) -> Option<Date> {
    // The first years of our era are how programs write that they do not know.
    let year = i16::try_from(year).ok().filter(|year| *year >= 1000)?;
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
            "2024-05-01T23:59:59",
            "2024-05-01T23:59:59.123456+02:00",
            "2024-05-01T00:00:00Z",
            "2024-05-01 10:00:00",
            "2024/05/01",
            "2024/5/1 10:00",
            "20240501",
            "1714550400",
            "1714550400000",
        ] {
            assert_eq!(of_text(text), Some(day), "{text}");
        }
        assert_eq!(of_number(1_714_550_400_000), Some(day));
        assert_eq!(of_number(1_714_521_599_999), Some(date(2024, 4, 30)));
        assert_eq!(of_text("1066-10-14"), Some(date(1066, 10, 14)));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "yesterday",
            "2024",
            "2024-05",
            "2024-13-01",
            "2024-02-30",
            "2024-05-",
            "2024-05/01",
            "0001-01-01T00:00:00Z",
            "20241301",
            "99999999999999999999",
            "日本-05-01",
            "日本語です-05-01",
            "0",
        ] {
            assert_eq!(of_text(text), None, "{text}");
        }
        for number in [0, -1, 2024, 12_345, i64::MAX, i64::MIN] {
            assert_eq!(of_number(number), None, "{number}");
        }
    }
}
