//! The table of several runtimes: health, load and counters.

use maud::{Markup, html};
use runtimes::{BreakerState, MemberStatus};

use crate::page::{columns, data_table};

/// Unhealthy runtimes come first, so that they are among those shown.
const MAX_ROWS: usize = 50;
/// A runtime that gets less than this part of a full share is shown as slow.
const SLOW_SHARE: f64 = 0.5;

/// URLs are for administrators only.
pub(crate) fn table(runtimes: &[MemberStatus], show_urls: bool) -> Markup {
    let mut sorted: Vec<_> = runtimes.iter().enumerate().map(|(at, member)| (state(member), at, member)).collect();
    sorted.sort_by_key(|((good, _), ..)| *good);
    let head = columns(&[
        "Runtime", "State", ">In flight", ">Completed", ">Failed", ">At capacity", ">Retried elsewhere", ">Latency",
        ">Per token",
    ]);
    html! {
        h2 { "Runtimes" }
        (data_table("Runtimes", head, html! {
            @for ((good, state), at, member) in sorted.iter().take(MAX_ROWS) {
                (line(&name(member, *at, show_urls), *good, state, member))
            }
        }))
        @if runtimes.len() > MAX_ROWS {
            p.quiet { (format::number((runtimes.len() - MAX_ROWS) as u64)) " more." }
        }
    }
}

fn line(name: &str, good: bool, state: &str, member: &MemberStatus) -> Markup {
    let time = |time: Option<std::time::Duration>| time.map_or_else(|| "–".into(), format::duration);
    html! {
        tr {
            th scope="row" {
                (name)
                @for about in [&member.model, &member.device].into_iter().flatten() { " " span.quiet.small { (about) } }
            }
            td.nowrap data-label="State" { span class=(if good { "light good" } else { "light bad" }) {} (state) }
            td.right data-label="In flight" { (format::number(member.in_flight as u64)) }
            td.right data-label="Completed" { (format::number(member.completed)) }
            td.right data-label="Failed" { (format::number(member.failures.total())) }
            td.right data-label="At capacity" { (format::number(member.failures.at_capacity())) }
            td.right data-label="Retried elsewhere" { (format::number(member.retried + member.moved)) }
            td.right data-label="Latency" { (time(member.latency)) }
            td.right data-label="Per token" { (time(member.latency_per_token)) }
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
    use std::time::Duration;

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
            let page = table(&[member(), status.clone()], true).into_string();
            assert!(page.contains(words), "{page}");
            let first = page.split("<tbody>").nth(1).and_then(|body| body.split("</tr>").next()).unwrap();
            assert!(first.contains(words) || state(status).0, "{first}");
        }
    }

    #[test]
    fn the_device_is_shown() {
        let member = MemberStatus { device: Some("31 of 31 layers on A card".into()), ..member() };
        assert!(table(&[member], false).into_string().contains("31 of 31 layers on A card"));
    }

    #[test]
    fn urls_are_for_administrators() {
        let page = table(&[member(), member()], false).into_string();
        assert!(!page.contains("somewhere") && page.contains("Runtime 2"), "{page}");
        assert!(table(&[member()], true).into_string().contains("http://somewhere:8000/v1"));
    }
}
