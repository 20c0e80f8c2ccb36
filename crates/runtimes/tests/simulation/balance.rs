//! Regression tests of the balance in a small fleet. The results are the same on every machine.

use crate::gateway::Policy;
use crate::results::Results;
use crate::simulation::{Condition, SECOND, Scenario, simulate};

fn fleet(gateways: usize, condition: Condition) -> Scenario {
    Scenario {
        members: 16,
        gateways,
        per_second: 16.0 * 80.0,
        duration: 20 * SECOND,
        condition,
        cache: 120_000,
        seed: 7,
    }
}

fn run(scenario: &Scenario, policy: Policy) -> Results {
    let figures = simulate(scenario, policy);
    assert_eq!(figures.lost, 0, "every request ends");
    figures
}

#[test]
fn prefixes_are_found_in_caches_without_higher_latency() {
    for gateways in [1, 3, 12] {
        let scenario = fleet(gateways, Condition::Calm);
        let (ours, least) = (run(&scenario, Policy::Production), run(&scenario, Policy::LeastOutstanding));
        let figures = [&ours, &least].map(|figures| (figures.hit_rate(), figures.mean(), figures.quantile(0.99)));
        assert!(ours.hit_rate() > least.hit_rate() + 0.12, "{gateways}: {figures:?}");
        assert!(ours.mean() < least.mean(), "{gateways}: {figures:?}");
        assert!(ours.quantile(0.99) < least.quantile(0.99) * 1.03, "{gateways}: {figures:?}");
        assert!(ours.busiest() < 1.3, "{gateways}: {}", ours.busiest());
        assert_eq!(ours.failed, 0);
    }
}

#[test]
fn failing_members_have_little_effect() {
    for gateways in [1, 3, 12] {
        let calm = run(&fleet(gateways, Condition::Calm), Policy::Production);
        let storm = run(&fleet(gateways, Condition::Failures), Policy::Production);
        let random = run(&fleet(gateways, Condition::Failures), Policy::Random);
        let figures = [&calm, &storm, &random].map(|figures| (figures.failed, figures.quantile(0.99)));
        assert!(storm.failed < 5 && random.failed > 100, "{gateways}: {figures:?}");
        // Moved requests are late, but completed.
        assert!(storm.quantile(0.99) < calm.quantile(0.99) * 1.35, "{gateways}: {figures:?}");
        assert!(storm.hit_rate() > calm.hit_rate() - 0.06, "{gateways}: {} {}", storm.hit_rate(), calm.hit_rate());
    }
}

/// Eight runtimes, one of which hangs for half a minute, although it passes its health checks.
#[test]
fn requests_that_wait_at_a_hung_member_are_moved_and_completed() {
    for gateways in [1, 3] {
        let scenario = Scenario {
            members: 8,
            per_second: 8.0 * 40.0,
            duration: 60 * SECOND,
            ..fleet(gateways, Condition::OneHangs)
        };
        let calm = run(&Scenario { condition: Condition::Calm, ..scenario.clone() }, Policy::Production);
        let (moved, stuck) = (run(&scenario, Policy::Production), run(&scenario, Policy::ProductionWithoutMoves));
        let figures = [&calm, &moved, &stuck]
            .map(|figures| (figures.failed, figures.moved, figures.quantile(0.999), figures.quantile(1.0)));
        println!("{gateways}: {figures:?}");
        assert_eq!((calm.moved, calm.failed), (0, 0), "{gateways}: {figures:?}");
        assert!(stuck.failed > 20, "{gateways}: {figures:?}");
        assert_eq!(moved.failed, 0, "{gateways}: {figures:?}");
        assert!(moved.quantile(1.0) < 15_000.0, "half of the timeout: {gateways}: {figures:?}");
        let completed = moved.completed_count() as u64;
        assert!(moved.moved < stuck.failed * 2 && moved.moved * 50 < completed, "{gateways}: {figures:?}");
    }
}

#[test]
fn hardly_any_request_is_moved_in_a_fleet_that_is_slow_as_a_whole() {
    for (gateways, per_member) in [(1, 20.0), (3, 20.0), (1, 1.0), (3, 0.2)] {
        let scenario = Scenario {
            members: 8,
            per_second: 8.0 * per_member,
            duration: 60 * SECOND,
            ..fleet(gateways, Condition::AllSlow)
        };
        let (ours, without) = (run(&scenario, Policy::Production), run(&scenario, Policy::ProductionWithoutMoves));
        let figures =
            [&ours, &without].map(|figures| (figures.completed_count(), figures.failed, figures.moved, figures.mean()));
        println!("{gateways} {per_member}: {figures:?}");
        assert!(ours.moved * 100 <= ours.completed_count() as u64 + 200, "{gateways}: {figures:?}");
        assert!(ours.mean() < without.mean() * 1.02 && ours.failed <= without.failed, "{gateways}: {figures:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_results() {
    let figures = || {
        let figures = run(&fleet(3, Condition::Failures), Policy::Production);
        (figures.completed_count(), figures.failed, figures.mean(), figures.hit_rate(), figures.quantile(0.999))
    };
    assert_eq!(figures(), figures());
}
