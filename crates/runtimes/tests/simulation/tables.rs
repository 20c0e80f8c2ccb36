//! The results of the production balance and of simpler ones, as Markdown.

use std::fmt::Write as _;

use crate::gateway::Policy;
use crate::results::Results;
use crate::simulation::{Condition, SECOND, Scenario, simulate};

/// `SIMULATION_RESULTS` is the file to write, and with `SIMULATION_QUICK` the large fleet is omitted.
#[test]
#[ignore = "takes minutes; bench/pool.py runs it"]
fn tables() {
    let quick = std::env::var_os("SIMULATION_QUICK").is_some();
    let mut text = String::new();
    let out = &mut text;
    let small = Scenario {
        members: 40,
        gateways: 1,
        per_second: 200_000.0 / 60.0,
        duration: 60 * SECOND,
        condition: Condition::Calm,
        cache: 120_000,
        seed: 1,
    };
    let large = Scenario { members: 200, per_second: 1_000_000.0 / 60.0, ..small.clone() };
    writeln!(out, "{}", include_str!("method.md").trim_end()).unwrap();
    for scenario in [Some(small), (!quick).then_some(large)].into_iter().flatten() {
        let failures = "one dies and returns, one is 5 times slower for a while, one hangs";
        for (condition, words) in [(Condition::Calm, "all is well"), (Condition::Failures, failures)] {
            let per_minute = (scenario.per_second * 60.0).round() as u64;
            writeln!(out, "\n### {} runtimes, {} requests a minute, {words}\n", scenario.members, grouped(per_minute))
                .unwrap();
            write_heading(out);
            for gateways in [1, 3, 12] {
                for policy in Policy::ALL {
                    let results = simulate(&Scenario { gateways, condition, ..scenario.clone() }, policy);
                    write_row(out, gateways, results.policy, &results);
                }
            }
        }
    }
    writeln!(out, "\n### Waiting requests: 8 runtimes, 19,200 requests a minute, with and without moves\n").unwrap();
    write_heading(out);
    let eight = Scenario {
        members: 8,
        gateways: 1,
        per_second: 320.0,
        duration: 60 * SECOND,
        condition: Condition::Calm,
        cache: 120_000,
        seed: 1,
    };
    // Fewer requests for the slow fleet, so that it is not overloaded.
    for (condition, words, per_second) in [
        (Condition::Calm, "all is well", 320.0),
        (Condition::OneHangs, "one hangs for half the time", 320.0),
        (Condition::AllSlow, "all are 5 times slower for 40 % of the time, at half the load", 160.0),
    ] {
        for (policy, moves) in [(Policy::Production, "with"), (Policy::ProductionWithoutMoves, "without")] {
            let results = simulate(&Scenario { condition, per_second, ..eight.clone() }, policy);
            write_row(out, 1, &format!("{words}; {moves} moves"), &results);
        }
    }
    std::fs::write(std::env::var_os("SIMULATION_RESULTS").unwrap(), text).unwrap();
}

fn write_heading(out: &mut String) {
    writeln!(out, "| gateways | balance | prompt tokens found in caches | mean | p50 | p99 | p99.9 | longest | moved | failed | busiest ÷ mean, at a time | busiest ÷ mean, in all |").unwrap();
    writeln!(out, "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|").unwrap();
}

fn write_row(out: &mut String, gateways: usize, name: &str, results: &Results) {
    assert_eq!(results.lost, 0, "every request ends");
    writeln!(out, "| {gateways} | {} | {:.1} % | {:.0} ms | {:.0} ms | {:.0} ms | {:.0} ms | {:.0} ms | {} | {} of {} | {:.2} | {:.2} |",
        name,
        results.hit_rate() * 100.0,
        results.mean(),
        results.quantile(0.5),
        results.quantile(0.99),
        results.quantile(0.999),
        results.quantile(1.0),
        grouped(results.moved),
        grouped(results.failed),
        grouped(results.failed + results.completed_count() as u64),
        results.peak(),
        results.busiest(),).unwrap();
}

/// With commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
