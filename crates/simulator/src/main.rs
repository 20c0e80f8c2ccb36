//! Prints the results of the production balance and of simpler ones as Markdown: `cargo run --release -p simulator`.
//! `--quick` leaves out the large fleet.

use simulator::{Condition, Policy, Results, SECOND, Scenario, simulate};

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
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
    println!("{}", include_str!("method.md").trim_end());
    for scenario in [Some(small), (!quick).then_some(large)].into_iter().flatten() {
        let failures = "one dies and returns, one is 5 times slower for a while, one hangs";
        for (condition, words) in [(Condition::Calm, "all is well"), (Condition::Failures, failures)] {
            let per_minute = (scenario.per_second * 60.0).round() as u64;
            println!("\n### {} runtimes, {} requests a minute, {words}\n", scenario.members, grouped(per_minute));
            print_heading();
            for gateways in [1, 3, 12] {
                for policy in Policy::ALL {
                    print_row(gateways, &simulate(&Scenario { gateways, condition, ..scenario.clone() }, policy));
                }
            }
        }
    }
}

fn print_heading() {
    println!(
        "| gateways | balance | prompt tokens found in caches | mean | p50 | p99 | p99.9 | failed | busiest ÷ mean, at a time | busiest ÷ mean, in all |"
    );
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|");
}

fn print_row(gateways: usize, results: &Results) {
    assert_eq!(results.lost, 0, "every request ends");
    println!(
        "| {gateways} | {} | {:.1} % | {:.0} ms | {:.0} ms | {:.0} ms | {:.0} ms | {} of {} | {:.2} | {:.2} |",
        results.policy,
        results.hit_rate() * 100.0,
        results.mean(),
        results.quantile(0.5),
        results.quantile(0.99),
        results.quantile(0.999),
        grouped(results.failed),
        grouped(results.failed + results.completed_count() as u64),
        results.peak(),
        results.busiest(),
    );
}

/// With commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
