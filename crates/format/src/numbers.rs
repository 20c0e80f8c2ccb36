//! Counts, shares and durations.

use std::time::Duration;

use store::Measured;

/// Digits in groups of three.
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

pub fn number_or_dash(value: Option<u64>) -> String {
    value.map_or_else(|| "–".into(), number)
}

/// For the axis of a chart: `1.5k`, `2M`.
pub fn short_number(value: f64) -> String {
    let one_decimal = |value: f64| {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
    };
    match value {
        value if value >= 1e9 => format!("{}B", one_decimal(value / 1e9)),
        value if value >= 1e6 => format!("{}M", one_decimal(value / 1e6)),
        value if value >= 1e3 => format!("{}k", one_decimal(value / 1e3)),
        value => one_decimal(value),
    }
}

/// `1 request`, `1,200 requests`.
pub fn count(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(value), if value == 1 { "" } else { "s" })
}

/// `part` of `whole`, in percent; 0 % of nothing.
pub fn percent(part: u64, whole: u64) -> String {
    let percent = if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    format!("{percent:.1} %")
}

/// The number of requests over which a sum was measured; `None` if over all of them.
pub fn measured_of(figure: Measured, requests: u64) -> Option<String> {
    (figure.count != requests).then(|| format!("{} of {} measured", number(figure.count), number(requests)))
}

pub fn duration(duration: Duration) -> String {
    micros(duration.as_micros() as f64)
}

/// `1 day`, `90 seconds`: in the largest unit that gives a whole number.
pub fn long_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    let unit = units.into_iter().find(|(length, _)| seconds >= *length && seconds.is_multiple_of(*length));
    let (length, noun) = unit.unwrap_or((1, "second"));
    count(seconds / length, noun)
}

/// A duration in µs, ms or s.
pub fn micros(micros: f64) -> String {
    match micros {
        micros if micros < 1_000.0 => format!("{micros:.0} µs"),
        micros if micros < 1_000_000.0 => format!("{:.1} ms", micros / 1_000.0),
        micros => format!("{:.2} s", micros / 1_000_000.0),
    }
}

/// A time in the unit that suits `top`, so that all figures of an axis have the same.
pub fn micros_of(micros: f64, top: f64) -> String {
    match top {
        top if top < 1_000.0 => format!("{micros} µs"),
        top if top < 1_000_000.0 => format!("{} ms", micros / 1_000.0),
        _ => format!("{} s", micros / 1_000_000.0),
    }
}

/// A grounding score for JSON and CSV: rounded to four decimals, because widening `f32` to `f64` adds digits.
pub fn score(score: f32) -> f64 {
    (f64::from(score) * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_formatted_for_people() {
        assert_eq!([number(0), number(999), number(1000), number(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([short_number(950.0), short_number(1_500.0), short_number(2e6)], ["950", "1.5k", "2M"]);
        assert_eq!([micros(12.0), micros(1_500.0), micros(2_500_000.0)], ["12 µs", "1.5 ms", "2.50 s"]);
        let axis = |top: f64| [micros_of(top, top), micros_of(top / 2.0, top), micros_of(0.0, top)];
        assert_eq!(axis(1_000_000.0), ["1 s", "0.5 s", "0 s"]);
        assert_eq!(axis(500_000.0), ["500 ms", "250 ms", "0 ms"]);
        assert_eq!([count(1, "key"), count(1000, "key")], ["1 key", "1,000 keys"]);
        assert_eq!([percent(1, 8), percent(0, 0)], ["12.5 %", "0.0 %"]);
        assert_eq!(measured_of(Measured { sum: 1200, count: 3 }, 4).as_deref(), Some("3 of 4 measured"));
        assert_eq!(measured_of(Measured { sum: 1200, count: 4 }, 4), None);
    }
}
