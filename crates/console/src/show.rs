//! Figures and times as HTML. Times are written in UTC, which a page says where there is no script; otherwise the script
//! rewrites them in the viewer's own time zone, at the same width.

use std::time::{SystemTime, UNIX_EPOCH};

use format::{exact_time, measured_of, number, rfc3339_millis, short_time};
use maud::{Markup, html};
use store::{Figures, Measured};

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// A sum of token figures: a dash if none was measured, and over how many requests it was unless over all.
pub(crate) fn measured(figure: Measured, requests: u64) -> Markup {
    html! {
        @match figure.get() {
            None => span.quiet title="not measured for any request" { "–" },
            Some(sum) => {
                (number(sum))
                @if let Some(measured) = measured_of(figure, requests) { " " span.quiet.small { (measured) } }
            }
        }
    }
}

pub(crate) fn failed(figures: &Figures, succeeded: u64) -> u64 {
    figures.requests.saturating_sub(succeeded)
}

/// To the minute, the exact time on hover.
pub(crate) fn time(millis: u64) -> Markup {
    html! {
        time datetime=(rfc3339_millis(millis)) title=(exact_time(millis)) data-local { (short_time(millis, now())) }
    }
}

pub(crate) fn time_or(millis: Option<u64>, word: &str) -> Markup {
    match millis {
        Some(millis) => time(millis),
        None => html! { span.quiet { (word) } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_says_over_how_many_requests_it_was_measured() {
        let some = measured(Measured { sum: 1200, count: 3 }, 4).into_string();
        assert!(some.contains("1,200") && some.contains("3 of 4 measured"), "{some}");
    }
}
