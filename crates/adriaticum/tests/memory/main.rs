//! The memory budget: under attacks by callers and visitors, the service has to stay within the 512 MiB that the Helm
//! chart gives it, and one well-behaved caller must not notice them.
//!
//! The test measures the process's peak of resident memory (`VmHWM`), which the system keeps exactly and which needs no
//! privilege. A fake runtime answers instead of the embedded engine. Each attack is tried alone, then all at the same
//! time. `TEST_ROUNDS` (1) repeats the whole.
//!
//! Before bodies and sign-ins were bounded, it failed: half-sent bodies over HTTP/2 took 524 MiB while no request counted
//! as in flight; forty simultaneous sign-ins kept 117 MiB permanently, and all attacks together 1,078 MiB, with the
//! well-behaved caller's 99th percentile at 2.1 s instead of 14 ms.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attacks;
mod caller;

use std::time::Instant;

use testbed::{Behaviour, FakeRuntime, FakeSearch, Program, Service, measure, wait_for};

use crate::attacks::{ATTACKS, Attack, Target, hostile_results};
use crate::caller::{Caller, Latencies};

const ADRIATICUM: Program = Program::new(env!("CARGO_BIN_EXE_adriaticum"));

/// `resources.limits.memory` in the chart's values.
const CHART_LIMIT_BYTES: u64 = 512 << 20;

#[test]
fn under_attack_a_caller_is_served_as_before_and_memory_stays_within_the_charts_limit() {
    let rounds: usize = std::env::var("TEST_ROUNDS").map_or(1, |rounds| rounds.parse().expect("a number"));
    raise_file_limit();
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let search = FakeSearch::finding(&hostile_results());
    let service = ADRIATICUM.service_with(&[&runtime]).set("search.url", &search.url()).start();
    let target = Target::new(&service);
    let mut caller = Caller::new(&service);
    caller.measure(); // warms up
    let quiet = caller.measure();
    println!("{:<42} {quiet}   {} MiB", "quiet", mebibytes(service.peak_bytes()));

    let mut faults = Vec::new();
    for _ in 0..rounds {
        for attack in ATTACKS {
            measure_under(attack.name, &[attack], &target, &mut caller, &quiet, &mut faults);
        }
        let all: Vec<_> = ATTACKS.iter().collect();
        measure_under("all at the same time", &all, &target, &mut caller, &quiet, &mut faults);
    }
    wait_until_over(&service, &mut faults);
    println!("{:<42} {}   {} MiB", "quiet again", caller.measure(), mebibytes(service.resident_bytes()));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Measures the well-behaved caller under attack, and adds faults. If the machine stalled meanwhile, a slow caller is
/// measured under the same attack again.
fn measure_under(
    name: &str,
    attacks: &[&Attack],
    target: &Target<'_>,
    caller: &mut Caller<'_>,
    quiet: &Latencies,
    faults: &mut Vec<String>,
) {
    let measured = measure(
        |latencies: &Latencies| latencies.are_like(quiet),
        || measure_once_under(name, attacks, target, caller, faults),
    );
    if let Err(slow) = measured {
        faults.push(format!("{name}: the well-behaved caller had {slow}, and {quiet} without attacks"));
    }
}

fn measure_once_under(
    name: &str,
    attacks: &[&Attack],
    target: &Target<'_>,
    caller: &mut Caller<'_>,
    faults: &mut Vec<String>,
) -> Latencies {
    let began = Instant::now();
    let running: Vec<_> = attacks.iter().map(|attack| (attack.begin)(target)).collect();
    let latencies = caller.measure();
    let (peak, now) = (target.service.peak_bytes(), target.service.resident_bytes());
    drop(running);
    println!(
        "{name:<42} {latencies}   {} MiB, at most {} MiB, in {:.1} s",
        mebibytes(now),
        mebibytes(peak),
        began.elapsed().as_secs_f64()
    );
    if peak > CHART_LIMIT_BYTES {
        faults.push(format!("{name}: {} MiB of memory", mebibytes(peak)));
    }
    if latencies.failed > 0 {
        faults.push(format!("{name}: {} requests of the well-behaved caller failed", latencies.failed));
    }
    latencies
}

/// Slots and memory that the attackers held are released once they have disconnected.
fn wait_until_over(service: &Service, faults: &mut Vec<String>) {
    if let Some(held) = service.metric("adriaticum_body_memory_bytes") {
        println!("{} MiB of bodies held at the end of the attacks", mebibytes(held as u64));
        wait_for("the bodies' memory", || (service.metric("adriaticum_body_memory_bytes") == Some(0.0)).then_some(()));
    } else {
        faults.push("no metric shows the memory of bodies".into());
    }
    wait_for("requests in flight", || (service.metric("adriaticum_requests_in_flight") == Some(0.0)).then_some(()));
}

fn mebibytes(bytes: u64) -> u64 {
    bytes >> 20
}

/// The attackers are this process, and have thousands of connections.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}
