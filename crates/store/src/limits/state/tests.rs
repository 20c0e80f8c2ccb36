use proptest::prelude::*;

use crate::limits::spending::Spending;
use crate::limits::state::*;
use crate::limits::table::LimitTable;
use crate::values::{BudgetPeriod, BudgetUnit, Limit};

const START: Timestamp = Timestamp::from_seconds(1_800_000_000);

fn key(number: u64) -> KeyId {
    format!("{number:012}").parse().unwrap()
}

fn person(number: u64) -> AccountId {
    format!("{number:012}").parse().unwrap()
}

fn reservation(number: u64, owner: Option<u64>, tokens: u64, now: Timestamp) -> Reservation {
    let request = RequestId::at_micros(now.as_millis() * 1_000, number);
    Reservation { request, key: key(number), owner: owner.map(person), tokens }
}

fn table(limits: &[(Scope, LimitKind, u64)]) -> LimitTable {
    LimitTable::new(1, limits.iter().map(|&(scope, kind, amount)| Limit { scope, kind, amount }))
}

/// A service with one state, in virtual time.
struct World {
    limits: LimitTable,
    state: State,
    spent: HashMap<Scope, SpentInPeriods>,
    now: Timestamp,
}

impl World {
    fn new(limits: &[(Scope, LimitKind, u64)]) -> Self {
        Self { limits: table(limits), state: State::default(), spent: HashMap::new(), now: START }
    }

    fn ask(&mut self, number: u64, owner: Option<u64>, tokens: u64) -> Result<Reservation, Refusal> {
        let reservation = reservation(number, owner, tokens, self.now);
        let limits = self.limits.limits_of(reservation.key, reservation.owner);
        self.state.reserve(&limits, &reservation, &self.spent, self.now).map(|()| reservation)
    }

    fn settle(&mut self, reservation: &Reservation, tokens: u64) {
        for scope in reservation.scopes() {
            let spent = self.spent.entry(scope).or_default();
            for period in [BudgetPeriod::Day, BudgetPeriod::Month] {
                spent.of_mut(period).add(Spending { requests: 1, tokens, unmeasured: 0 });
            }
        }
        self.state.release(reservation, self.now);
    }
}

const IN_FLIGHT: LimitKind = LimitKind::RequestsInFlight;
const PER_MINUTE: LimitKind = LimitKind::RequestsPerMinute;
const TOKENS: LimitKind = LimitKind::Budget(BudgetUnit::Tokens, BudgetPeriod::Day);

#[test]
fn a_refusal_states_used_reserved_and_needed_and_reserves_nothing() {
    let mut world = World::new(&[(Scope::Everyone, TOKENS, 1_000), (Scope::Key(key(1)), PER_MINUTE, 5)]);
    let first = world.ask(1, None, 600).unwrap();
    for _ in 0..10 {
        let Err(Refusal::Budget(refusal)) = world.ask(1, None, 500) else { panic!("it does not fit") };
        assert_eq!((refusal.used, refusal.reserved, refusal.needed), (0, 600, 500));
    }
    world.settle(&first, 450);
    for _ in 0..4 {
        let next = world.ask(1, None, 100).unwrap();
        world.settle(&next, 0);
    }
    assert!(matches!(world.ask(1, None, 100), Err(Refusal::Limit(reached)) if reached.kind == PER_MINUTE));
}

#[test]
fn the_limit_with_the_longest_wait_sets_retry_after() {
    let person = Scope::Owner(person(1));
    let mut world = World::new(&[(Scope::Key(key(1)), IN_FLIGHT, 1), (person, PER_MINUTE, 1)]);
    let first = world.ask(1, Some(1), 1).unwrap();
    let Err(Refusal::Limit(reached)) = world.ask(1, Some(1), 1) else { panic!("both are reached") };
    assert_eq!((reached.scope, reached.retry_after), (person, Duration::from_secs(60)));
    world.settle(&first, 1);
    world.now = world.now + reached.retry_after;
    assert!(world.ask(1, Some(1), 1).is_ok());
}

#[test]
fn one_key_alone_may_use_all_and_yields_a_place_to_another() {
    for limit in [1, 2, 4, 10] {
        let mut world = World::new(&[(Scope::Everyone, IN_FLIGHT, limit)]);
        let mut greedy: Vec<_> = (0..limit).map(|_| world.ask(1, None, 1).unwrap()).collect();
        for turn in 0..20 {
            assert!(world.ask(2, None, 1).is_err(), "all places are taken");
            let ended = greedy.pop().unwrap();
            world.settle(&ended, 1);
            assert!(world.ask(1, None, 1).is_err(), "{limit}, {turn}: a party that holds less waits");
            world.now = world.now + Duration::from_secs(1);
            let patient = world.ask(2, None, 1).unwrap();
            world.settle(&patient, 1);
            world.now = world.now + PATIENCE; // the place is not kept for it forever
            greedy.push(world.ask(1, None, 1).unwrap_or_else(|refused| panic!("{limit}: {refused:?}")));
        }
    }
}

#[test]
fn a_rate_of_everyone_is_shared_by_active_parties() {
    let mut world = World::new(&[(Scope::Everyone, PER_MINUTE, 60)]);
    let mut started = [0; 2];
    // The greedy key sends a request every 50 ms, the patient one every two seconds.
    for tick in 0..2_400_u64 {
        world.now = START + Duration::from_millis(tick * 50);
        let who = u64::from(tick % 40 == 39);
        if let Ok(reserved) = world.ask(who, None, 1) {
            started[who as usize] += 1;
            world.settle(&reserved, 1);
        }
    }
    assert!(started[1] >= 55, "{started:?} of 60 attempts");
    assert!(started[0] + started[1] >= 170, "{started:?}: nothing is wasted");
}

#[test]
fn ten_keys_of_one_person_are_one_party() {
    let mut world = World::new(&[(Scope::Everyone, IN_FLIGHT, 10)]);
    let mut held: Vec<_> = (1..=10).map(|number| world.ask(number, Some(1), 1).unwrap()).collect();
    assert!(world.ask(99, Some(2), 1).is_err());
    let ended = held.pop().unwrap();
    world.settle(&ended, 1);
    assert!((1..=10).all(|number| world.ask(number, Some(1), 1).is_err()));
    assert!(world.ask(99, Some(2), 1).is_ok());
}

proptest! {
    /// In any order of starts, ends and measurements, no budget is exceeded and nothing stays reserved.
    #[test]
    fn budgets_are_never_exceeded(
        steps in proptest::collection::vec((0..6_u64, 1..200_u64, 0..=100_u64, any::<bool>()), 1..300),
        amount in 0..3_000_u64,
        requests in 0..40_u64,
    ) {
        let requests_per_month = LimitKind::Budget(BudgetUnit::Requests, BudgetPeriod::Month);
        let mut world = World::new(&[
            (Scope::Everyone, TOKENS, amount),
            (Scope::Owner(person(1)), requests_per_month, requests),
            (Scope::EachPerson, TOKENS, amount / 2),
        ]);
        let mut running: Vec<Reservation> = Vec::new();
        for (who, tokens, part, ends) in steps {
            if ends && let Some(ended) = running.pop() {
                world.settle(&ended, ended.tokens * part / 100);
            } else if let Ok(reserved) = world.ask(who, (who > 2).then_some(who % 2 + 1), tokens) {
                running.push(reserved);
            }
            for (scope, spent) in &world.spent {
                let reserved = world.state.scopes.get(scope).map_or(0, |state| state.tokens);
                let most = match scope {
                    Scope::Everyone => amount,
                    Scope::Owner(_) => amount / 2,
                    _ => u64::MAX,
                };
                prop_assert!(spent.day.tokens + reserved <= most);
                prop_assert!(*scope != Scope::Owner(person(1)) || spent.month.requests <= requests);
            }
        }
        running.iter().for_each(|reserved| world.state.release(reserved, START));
        prop_assert!(world.state.scopes.values().all(|state| state.requests == 0 && state.tokens == 0));
    }
}
