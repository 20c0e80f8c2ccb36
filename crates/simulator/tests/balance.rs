//! The balance in a small simulated fleet: fails if a change makes it worse. The results are the same on every machine;
//! `cargo run --release -p simulator` prints them at full size.

use simulator::{Policy, Results, SECOND, Scenario, simulate};

fn fleet(gateways: usize, failures: bool) -> Scenario {
    Scenario {
        members: 16,
        gateways,
        per_second: 16.0 * 80.0,
        duration: 20 * SECOND,
        failures,
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
        let scenario = fleet(gateways, false);
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
fn members_that_fail_hurt_little() {
    for gateways in [1, 3, 12] {
        let calm = run(&fleet(gateways, false), Policy::Production);
        let storm = run(&fleet(gateways, true), Policy::Production);
        let random = run(&fleet(gateways, true), Policy::Random);
        let figures = [&calm, &storm, &random].map(|figures| (figures.failed, figures.quantile(0.99)));
        assert!(storm.failed < 150 && storm.failed * 3 < random.failed, "{gateways}: {figures:?}");
        assert!(storm.quantile(0.99) < calm.quantile(0.99) * 1.25, "{gateways}: {figures:?}");
        assert!(storm.hit_rate() > calm.hit_rate() - 0.06, "{gateways}: {} {}", storm.hit_rate(), calm.hit_rate());
    }
}

#[test]
fn the_same_seed_gives_the_same_results() {
    let figures = || {
        let figures = run(&fleet(3, true), Policy::Production);
        (figures.completed_count(), figures.failed, figures.mean(), figures.hit_rate(), figures.quantile(0.999))
    };
    assert_eq!(figures(), figures());
}
