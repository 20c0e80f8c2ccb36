//! The balance under traffic, in virtual time.

use proptest::prelude::*;

use super::*;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("http://runtime-{n}:8000/v1")).collect()
}

fn prefix(number: u64) -> Affinity {
    Affinity::from_numbers(None, number)
}

/// The member that gets a request. The request ends immediately.
fn home(balance: &mut Balance, number: u64) -> usize {
    let lease = balance.choose(prefix(number), &[], 0).unwrap();
    let member = lease.member();
    balance.release(lease, Observation::responded(Verdict::Unclear), 0);
    member
}

/// Sends twenty requests per second until all are done, and counts them by member.
fn serve(balance: &mut Balance, now: &mut u64, count: u64, took: impl Fn(usize) -> u64) -> Vec<usize> {
    let (mut counts, mut in_flight) = (vec![0; balance.members().len()], Vec::<(u64, Lease)>::new());
    for number in 0..count {
        let lease = balance.choose(prefix(number), &[], *now).unwrap();
        counts[lease.member()] += 1;
        in_flight.push((*now + took(lease.member()), lease));
        *now += 50;
        for (end, lease) in in_flight.extract_if(.., |(end, _)| *end <= *now) {
            balance.release(lease, Observation::completed(50), end);
        }
    }
    in_flight.sort_by_key(|(end, _)| *end);
    for (end, lease) in in_flight {
        *now = end.max(*now);
        balance.release(lease, Observation::completed(50), *now);
    }
    counts
}

#[test]
fn prefixes_are_spread_evenly() {
    let mut balance = Balance::new(names(20));
    let mut counts = [0; 20];
    (0..20_000).for_each(|number| counts[home(&mut balance, number)] += 1);
    assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
}

#[test]
fn losing_a_member_moves_only_its_own_prefixes() {
    let mut five = Balance::new(names(5));
    let mut four = Balance::new(&names(5)[..4]);
    let homes: Vec<_> = (0..1000).map(|number| home(&mut five, number)).collect();
    for (number, &before) in homes.iter().enumerate() {
        let after = home(&mut four, number as u64);
        assert!(before == after || before == 4, "prefix {number} moved from {before} to {after}");
    }
    // The same if it leaves later. Its prefixes return with it.
    five.retire(4);
    assert!(five.members()[4].is_vacant());
    (0..1000).for_each(|number| assert_eq!(home(&mut five, number), home(&mut four, number)));
    let slot = five.add(&names(5)[4], true);
    five.mark_healthy(slot);
    (0..1000).for_each(|number| assert_eq!(home(&mut five, number), homes[number as usize]));
}

#[test]
fn a_hot_prefix_spills_to_the_same_members_every_time() {
    let mut balance = Balance::new(names(10));
    // The other members have load, so that the mean is not tiny.
    let _others: Vec<_> = (0..40).map(|number| balance.choose(prefix(number), &[], 0).unwrap()).collect();
    let mut spill = |count| {
        let leases: Vec<_> = (0..count).map(|_| balance.choose(prefix(7_777), &[], 0).unwrap()).collect();
        let slots: Vec<_> = leases.iter().map(Lease::member).collect();
        leases.into_iter().for_each(|lease| balance.release(lease, Observation::responded(Verdict::Good), 0));
        slots
    };
    let first = spill(12);
    assert_eq!(first, spill(12));
    let few: std::collections::HashSet<_> = first.iter().collect();
    assert!(few.len() < 8, "{first:?}");
}

#[test]
fn with_every_member_broken_one_request_at_a_time_probes_each() {
    let mut balance = Balance::new(names(2));
    for _ in 0..6 {
        let lease = balance.choose(prefix(1), &[], 0).unwrap();
        let other = balance.choose(prefix(1), &[lease.member()], 0);
        for lease in [Some(lease), other].into_iter().flatten() {
            balance.release(lease, Observation::responded(Verdict::Bad), 0);
        }
    }
    let (a, b) = (balance.choose(prefix(1), &[], 1).unwrap(), balance.choose(prefix(1), &[], 1).unwrap());
    assert_ne!(a.member(), b.member());
    assert!(balance.choose(prefix(1), &[], 1).is_none());
    let back = a.member();
    balance.release(a, Observation::completed(1), 1);
    assert_eq!(balance.choose(prefix(1), &[], 1).unwrap().member(), back);
}

#[test]
fn the_only_member_gets_every_request_once_it_passes_its_health_check() {
    let mut balance = Balance::new(names(1));
    for _ in 0..3 {
        balance.record_health_check(0, false, 0);
    }
    assert!(!balance.members()[0].is_healthy());
    let _trying = balance.choose(prefix(1), &[], 1).unwrap();
    assert!(balance.choose(prefix(1), &[], 1).is_none());
    balance.record_health_check(0, true, 2);
    let leases: Vec<_> = (0..50).map(|_| balance.choose(prefix(1), &[], 3)).collect();
    assert!(leases.iter().all(Option::is_some));
}

#[test]
fn a_slow_member_is_shed_and_comes_back() {
    let (mut balance, mut now) = (Balance::new(names(4)), 0);
    serve(&mut balance, &mut now, 200, |_| 1000);
    let slow = serve(&mut balance, &mut now, 2000, |member| if member == 0 { 5000 } else { 1000 });
    assert!((5..100).contains(&slow[0]), "{slow:?}");
    assert!(balance.members()[0].share() < 0.5);
    serve(&mut balance, &mut now, 1000, |_| 1000);
    let even = serve(&mut balance, &mut now, 1000, |_| 1000);
    assert!(even[0] > 180, "{even:?}");
}

#[test]
fn a_hung_member_gets_nothing_and_recovers_with_its_first_response() {
    let (mut balance, mut now) = (Balance::new(names(4)), 0);
    serve(&mut balance, &mut now, 200, |_| 1000);
    let stuck: Vec<_> = (0..100).map(|number| balance.choose(prefix(number), &[], now).unwrap()).collect();
    let (stuck, others): (Vec<_>, Vec<_>) = stuck.into_iter().partition(|lease| lease.member() == 0);
    now += 1000;
    others.into_iter().for_each(|lease| balance.release(lease, Observation::completed(50), now));
    serve(&mut balance, &mut now, 50, |_| 1000);
    let hung = serve(&mut balance, &mut now, 400, |_| 1000);
    assert_eq!(hung[0], 0, "no requests while it hangs");
    stuck.into_iter().for_each(|lease| balance.release(lease, Observation::completed(50), now));
    let back = serve(&mut balance, &mut now, 4000, |_| 1000);
    assert!(back[0] > 500, "{back:?}");
}

#[test]
fn a_saturated_member_is_avoided_for_the_time_that_it_reported() {
    let mut balance = Balance::new(names(2));
    let lease = balance.choose(prefix(1), &[], 0).unwrap();
    let (full, other) = (lease.member(), 1 - lease.member());
    balance.release(lease, Observation::saturated(Verdict::Unclear, 3_000), 0);
    assert!(balance.members()[full].is_healthy());
    let mut go = |excluded: &[usize], now| {
        let lease = balance.choose(prefix(1), excluded, now).unwrap();
        let member = lease.member();
        balance.release(lease, Observation::completed(1), now);
        member
    };
    assert_eq!((go(&[], 0), go(&[], 2_999), go(&[], 3_000)), (other, other, full));
    assert_eq!(go(&[other], 100), full, "if there is no other");
}

#[test]
fn a_leaving_member_finishes_its_requests_and_a_new_one_is_probed_first() {
    let mut balance = Balance::new(names(1));
    let lease = balance.choose(prefix(1), &[], 0).unwrap();
    let new = balance.add("http://new:8000/v1", true);
    balance.retire(0);
    assert!(balance.members()[0].is_draining());
    let first = balance.choose(prefix(1), &[], 0).unwrap();
    assert_eq!(first.member(), new);
    assert_ne!(balance.add("http://newer:8000/v1", false), 0, "its slot is not free yet");
    balance.release(lease, Observation::completed(1), 0);
    assert!(balance.members()[0].is_vacant());
    assert!(!balance.members()[new].is_healthy());
    balance.release(first, Observation::completed(1), 0);
    assert!(balance.members()[new].is_healthy());
    assert_eq!(balance.add("http://newest:8000/v1", true), 0);
}

/// Eight members that have completed requests of 50 tokens in one second each, most recently just now.
fn warm_fleet(now: &mut u64) -> Balance {
    let mut balance = Balance::new(names(8));
    serve(&mut balance, now, 400, |_| 1000);
    balance
}

/// Lets a request wait until it is moved, while the members for which `responds` is true complete others. Returns the
/// reason of the move, and advances `now` to it.
fn wait(balance: &mut Balance, lease: &Lease, now: &mut u64, responds: impl Fn(usize) -> bool) -> Option<MoveReason> {
    let began = *now;
    let mut in_flight = Vec::<(u64, Lease)>::new();
    while *now < began + 120_000 {
        let excluded = [lease.member()];
        let request = WaitingRequest { lease, affinity: prefix(1), max_tokens: 248, excluded: &excluded };
        if let Some((other, reason)) = balance.move_elsewhere(request, *now) {
            assert_ne!(other.member(), lease.member());
            balance.release(other, Observation::no_response(Verdict::Unclear), *now);
            return Some(reason);
        }
        if let Some(lease) = balance.choose(prefix(*now), &[], *now) {
            in_flight.push((*now + 1000, lease));
        }
        *now += 100;
        for (_, lease) in in_flight.extract_if(.., |(end, lease)| *end <= *now && responds(lease.member())) {
            balance.release(lease, Observation::completed(50), *now);
        }
    }
    None
}

#[test]
fn a_request_leaves_a_silent_member_while_its_peers_respond() {
    let mut now = 0;
    let mut balance = warm_fleet(&mut now);
    let lease = balance.choose(prefix(1), &[], now).unwrap();
    let (hung, began) = (lease.member(), now);
    assert_eq!(wait(&mut balance, &lease, &mut now, |member| member != hung), Some(MoveReason::Silent));
    // Its peers take four and a half seconds for 248 tokens.
    assert!((8_000..12_000).contains(&(now - began)), "{}", now - began);
    balance.release(lease, Observation::moved(MoveReason::Silent), now);
    // It is avoided at first, although no waiting request shows any longer that it hangs.
    let avoided = (0..100).filter(|number| home(&mut balance, *number) == hung).count();
    assert_eq!(avoided, 0);
}

#[test]
fn many_requests_leave_a_silent_member_sooner_because_not_all_of_them_are_long() {
    let mut now = 0;
    let mut balance = warm_fleet(&mut now);
    let leases: Vec<_> = (0..64).map(|number| balance.choose(prefix(number), &[], now).unwrap()).collect();
    let (stuck, others): (Vec<_>, Vec<_>) = leases.into_iter().partition(|lease| lease.member() == 0);
    others.into_iter().for_each(|lease| balance.release(lease, Observation::completed(50), now));
    let began = now;
    // The last request is moved as early as the first.
    for lease in stuck {
        assert_eq!(wait(&mut balance, &lease, &mut now, |member| member != 0), Some(MoveReason::Silent));
        balance.release(lease, Observation::moved(MoveReason::Silent), now);
    }
    assert!((2_000..5_000).contains(&(now - began)), "{}", now - began);
}

#[test]
fn nothing_is_moved_if_the_whole_fleet_is_silent() {
    let mut now = 0;
    let mut balance = warm_fleet(&mut now);
    let leases: Vec<_> = (0..80).map(|number| balance.choose(prefix(number), &[], now).unwrap()).collect();
    assert_eq!(wait(&mut balance, &leases[0], &mut now, |_| false), None);
}

#[test]
fn a_single_member_is_never_left() {
    let (mut balance, mut now) = (Balance::new(names(1)), 0);
    serve(&mut balance, &mut now, 400, |_| 1000);
    let lease = balance.choose(prefix(1), &[], now).unwrap();
    assert_eq!(wait(&mut balance, &lease, &mut now, |_| false), None);
    (0..5).for_each(|_| balance.record_health_check(0, false, now));
    assert_eq!(wait(&mut balance, &lease, &mut now, |_| false), None);
}

#[test]
fn uncertain_moves_are_limited() {
    let mut now = 0;
    let mut balance = warm_fleet(&mut now);
    // With one request at a time, it is unknown whether the peers would be as slow.
    let moved = (0..1000).filter(|number| {
        let lease = balance.choose(prefix(*number), &[], now).unwrap();
        now += 60_000;
        let excluded = [lease.member()];
        let request = WaitingRequest { lease: &lease, affinity: prefix(*number), max_tokens: 248, excluded: &excluded };
        let moved = balance.move_elsewhere(request, now).map(|(other, reason)| {
            balance.release(other, Observation::no_response(Verdict::Unclear), now);
            assert_eq!(reason, MoveReason::Silent);
        });
        balance.release(lease, Observation::completed(50), now);
        moved.is_some()
    });
    let moved = moved.count();
    assert!((1..=60).contains(&moved), "{moved} of 1000");
}

#[test]
fn requests_immediately_leave_a_member_that_fails_its_health_checks_but_a_probe_stays() {
    let mut balance = Balance::new(names(2));
    let lease = balance.choose(prefix(1), &[], 0).unwrap();
    let (sick, excluded) = (lease.member(), [lease.member()]);
    fn request<'a>(lease: &'a Lease, excluded: &'a [usize]) -> WaitingRequest<'a> {
        WaitingRequest { lease, affinity: prefix(1), max_tokens: 1, excluded }
    }
    (0..2).for_each(|_| balance.record_health_check(sick, false, 0));
    assert!(balance.move_elsewhere(request(&lease, &excluded), 0).is_none(), "the breaker is still closed");
    balance.record_health_check(sick, false, 0);
    let (other, reason) = balance.move_elsewhere(request(&lease, &excluded), 0).unwrap();
    assert_eq!((other.member(), reason), (1 - sick, MoveReason::Unhealthy));
    balance.release(lease, Observation::moved(reason), 0);
    balance.release(other, Observation::completed(1), 0);
    // A request that probes whether the member has recovered stays.
    let probe = balance.choose(prefix(1), &[1 - sick], 600).unwrap();
    assert!(balance.move_elsewhere(request(&probe, &excluded), 600).is_none());
    balance.release(probe, Observation::completed(1), 600);
    assert!(balance.members()[sick].is_healthy());
}

#[test]
fn a_member_that_hangs_repeatedly_is_tried_less_and_less() {
    let mut now = 0;
    let mut balance = warm_fleet(&mut now);
    let mut tries = 0;
    let (hung, until) = (0, now + 120_000);
    while now < until {
        for number in 0..20 {
            let lease = balance.choose(prefix(number), &[], now).unwrap();
            let observation = match lease.member() == hung {
                true => Observation::moved(MoveReason::Silent),
                false => Observation::completed(50),
            };
            tries += u32::from(lease.member() == hung);
            balance.release(lease, observation, now);
        }
        now += 100;
    }
    assert!((5..25).contains(&tries), "{tries}");
}

proptest! {
    /// Under any traffic, loads are counted exactly and exceed the share by at most a quarter, the excluded member is
    /// never chosen, and a member is always chosen while one is healthy.
    #[test]
    fn loads_stay_bounded(count in 1..8usize, steps in proptest::collection::vec((0..4u64, 0..10u8), 1..300)) {
        let mut balance = Balance::new(names(count));
        let mut in_flight = Vec::new();
        for (number, step) in steps {
            if step < 6 {
                let lease = balance.choose(prefix(number), &[], 0).unwrap();
                let member = lease.member();
                in_flight.push(lease);
                let share = (in_flight.len() * 5).div_ceil(count * 4);
                prop_assert!(balance.members[member].in_flight <= share);
            } else if let Some(lease) = in_flight.pop() {
                balance.release(lease, Observation::responded(Verdict::Good), 0);
            }
            let total: usize = balance.members.iter().map(MemberState::in_flight).sum();
            prop_assert_eq!(total, in_flight.len());
            let elsewhere = balance.choose(prefix(number), &[0], 0);
            prop_assert_eq!(elsewhere.is_none(), count == 1);
            if let Some(lease) = elsewhere {
                prop_assert_ne!(lease.member(), 0);
                balance.release(lease, Observation::no_response(Verdict::Unclear), 0);
            }
        }
    }

    /// Under any sequence of events, a member is chosen while one is healthy and not excluded, a member that has left
    /// is never chosen, and all loads are 0 at the end.
    #[test]
    fn a_member_is_always_chosen_while_one_is_healthy(
        count in 2..6usize,
        steps in proptest::collection::vec((0..12u8, 0..6usize, 0..2_000u64), 1..200),
    ) {
        let (mut balance, mut now, mut in_flight) = (Balance::new(names(count)), 0, Vec::<Lease>::new());
        for (step, at, pause) in steps {
            now += pause;
            let slot = at % balance.members.len();
            let observation = [
                Observation::completed(30),
                Observation::responded(Verdict::Bad),
                Observation::no_response(Verdict::Bad),
                Observation::no_response(Verdict::Unclear),
                Observation::saturated(Verdict::Unclear, 2_000),
            ];
            match (step, observation.get(usize::from(step))) {
                (_, Some(observation)) if !in_flight.is_empty() => {
                    let lease = in_flight.swap_remove(at % in_flight.len());
                    balance.release(lease, *observation, now);
                }
                (5, _) if balance.members.iter().filter(|member| member.slot == SlotState::Active).count() > 1 => {
                    if balance.members[slot].slot == SlotState::Active {
                        balance.retire(slot);
                    }
                }
                (6, _) => drop(balance.add(&format!("http://added-{now}"), at % 2 == 0)),
                (7, _) => balance.record_health_check(slot, false, now),
                (8, _) if !in_flight.is_empty() => {
                    let lease = in_flight.swap_remove(at % in_flight.len());
                    let excluded = [lease.member()];
                    let request =
                        WaitingRequest { lease: &lease, affinity: prefix(at as u64), max_tokens: 1, excluded: &excluded };
                    match balance.move_elsewhere(request, now) {
                        Some((other, reason)) => {
                            prop_assert_ne!(other.member(), lease.member());
                            prop_assert_eq!(balance.members[other.member()].slot, SlotState::Active);
                            balance.release(lease, Observation::moved(reason), now);
                            in_flight.push(other);
                        }
                        None => in_flight.push(lease),
                    }
                }
                _ => {
                    let lease = balance.choose(prefix(at as u64), &[], now);
                    let is_healthy = |member: &&MemberState| member.slot == SlotState::Active && member.is_healthy();
                    prop_assert!(lease.is_some() || !balance.members.iter().any(|member| is_healthy(&member)));
                    if let Some(lease) = lease {
                        prop_assert_eq!(balance.members[lease.member()].slot, SlotState::Active);
                        in_flight.push(lease);
                    }
                }
            }
            prop_assert!(balance.members.iter().all(|member| (0.0..=1.0).contains(&member.share)));
        }
        in_flight.into_iter().for_each(|lease| balance.release(lease, Observation::completed(1), now));
        prop_assert!(balance.members.iter().all(|member| member.in_flight == 0 && !member.is_draining()));
    }
}
