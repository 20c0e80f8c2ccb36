//! Dates as documents write them. What is not clearly a date is none.

use jiff::civil::Date;

/// `2024-05-01`, `2024-05-01T10:00:00Z`, `2024/05/01`, `20240501…` and what PDF writes, `D:20240501120000+02'00'`.
pub(super) fn parse(text: &str) -> Option<Date> {
    let text = text.trim().trim_matches(['"', '\'']);
    let text = text.strip_prefix("D:").unwrap_or(text);
    let digits = |range: std::ops::Range<usize>| {
        let part = text.get(range)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse::<i16>().ok())?
    };
    let (month, day) = match text.as_bytes().get(4)? {
        b'-' | b'/' | b'.' if text.as_bytes().get(7) == text.as_bytes().get(4) => (digits(5..7)?, digits(8..10)?),
        b'0' | b'1' => (digits(4..6)?, digits(6..8)?),
        _ => return None,
    };
    Date::new(digits(0..4)?, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    #[test]
    fn dates_are_read() {
        for (text, expected) in [
            ("2024-05-01", Some(date(2024, 5, 1))),
            (" \"2024-05-01\" ", Some(date(2024, 5, 1))),
            ("2024-05-01T23:30:00+02:00", Some(date(2024, 5, 1))),
            ("2024/12/31", Some(date(2024, 12, 31))),
            ("D:20230206081500+01'00'", Some(date(2023, 2, 6))),
            ("20230206", Some(date(2023, 2, 6))),
            ("2024-13-01", None),
            ("2024-02-30", None),
            ("2024-05/01", None),
            ("May 2024", None),
            ("2024", None),
            ("äöüäöüäö", None),
            ("", None),
        ] {
            assert_eq!(super::parse(text), expected, "{text}");
        }
    }
}
