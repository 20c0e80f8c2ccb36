//! The table of several runtimes: health, load and counters.

use std::time::Duration;

use maud::{Markup, html};
use runtimes::{BreakerState, MemberStatus};

use crate::page::table;

/// Unhealthy runtimes come first, so that they are among those shown.
const MAX_ROWS: usize = 50;
/// A runtime that gets less than this part of a full share is shown as slow.
const SLOW_SHARE: f64 = 0.5;

/// URLs are for administrators only.
pub(crate) fn runtime_table(runtimes: &[MemberStatus], show_urls: bool) -> Markup {
    let mut sorted: Vec<_> = runtimes.iter().enumerate().map(|(at, member)| (state(member), at, member)).collect();
    sorted.sort_by_key(|((good, _), ..)| *good);
    let titles = [
        "Runtime", "State", ">In flight", ">Completed", ">Failed", ">At capacity", ">Retried elsewhere", ">Latency",
        ">Per token",
    ];
    let rows = sorted.iter().take(MAX_ROWS).map(|((good, state), at, member)| {
        let name = name(member, *at, show_urls);
        let number = |number| html! { (format::number(number)) };
        let time = |time: Option<Duration>| html! { (time.map_or_else(|| "–".into(), format::duration)) };
        [
            html! {
                (name)
                @for about in [&member.model, &member.device].into_iter().flatten() { " " span.quiet.small { (about) } }
            },
            html! { span.nowrap { span class=(if *good { "light good" } else { "light bad" }) {} (state) } },
            number(member.in_flight as u64),
            number(member.completed),
            number(member.failures.total()),
            number(member.failures.at_capacity()),
            number(member.retried + member.moved),
            time(member.latency),
            time(member.latency_per_token),
        ]
    });
    html! {
        h2 { "Runtimes" }
        (table("Runtimes", titles, rows))
        @if runtimes.len() > MAX_ROWS {
            p.quiet { (format::number((runtimes.len() - MAX_ROWS) as u64)) " more." }
        }
    }
}

fn name(member: &MemberStatus, at: usize, show_urls: bool) -> String {
    if show_urls { member.url.clone() } else { format!("Runtime {}", at + 1) }
}

/// Whether the runtime is healthy, and its state in a few words.
fn state(member: &MemberStatus) -> (bool, String) {
    let percent = (member.share * 100.0).round();
    match member.breaker {
        _ if member.draining => (true, "draining".into()),
        BreakerState::Open => (false, "unhealthy".into()),
        BreakerState::HalfOpen => (false, "recovering".into()),
        BreakerState::Closed if member.share <= 0.0 => (false, "not responding".into()),
        BreakerState::Closed if member.saturated_for.is_some() => (false, "at capacity".into()),
        BreakerState::Closed if member.share < SLOW_SHARE => (false, format!("slow: gets {percent} % of its share")),
        BreakerState::Closed => (true, "healthy".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> MemberStatus {
        MemberStatus {
            url: "http://somewhere:8000/v1".into(),
            healthy: true,
            available: true,
            in_flight: 3,
            model: Some("llama".into()),
            device: None,
            completed: 1234,
            failures: runtimes::FailureCounts([0, 0, 2, 0, 1, 77, 0]),
            retried: 5,
            moved: 0,
            unexpected: 0,
            latency: Some(Duration::from_millis(1500)),
            latency_per_token: None,
            share: 1.0,
            breaker: BreakerState::Closed,
            saturated_for: None,
            draining: false,
        }
    }

    #[test]
    fn problems_come_first_and_are_named() {
        let cases = [
            (member(), "healthy"),
            (MemberStatus { share: 0.04, ..member() }, "slow: gets 4 % of its share"),
            (MemberStatus { share: 0.0, ..member() }, "not responding"),
            (MemberStatus { saturated_for: Some(Duration::from_secs(1)), ..member() }, "at capacity"),
            (MemberStatus { breaker: BreakerState::Open, ..member() }, "unhealthy"),
            (MemberStatus { draining: true, ..member() }, "draining"),
        ];
        for (status, words) in &cases {
            let page = runtime_table(&[member(), status.clone()], true).into_string();
            assert!(page.contains(words), "{page}");
            let first = page.split("<tbody>").nth(1).and_then(|body| body.split("</tr>").next()).unwrap();
            assert!(first.contains(words) || state(status).0, "{first}");
        }
    }

    #[test]
    fn the_device_is_shown() {
        let member = MemberStatus { device: Some("31 of 31 layers on A card".into()), ..member() };
        assert!(runtime_table(&[member], false).into_string().contains("31 of 31 layers on A card"));
    }

    #[test]
    fn urls_are_for_administrators() {
        let page = runtime_table(&[member(), member()], false).into_string();
        assert!(!page.contains("somewhere") && page.contains("Runtime 2"), "{page}");
        assert!(runtime_table(&[member()], true).into_string().contains("http://somewhere:8000/v1"));
    }
}
