use proptest::prelude::*;

use super::*;

const REPLICAS: usize = 3;

/// What happens at one replica.
#[derive(Debug, Clone, Copy)]
enum Event {
    Enter,
    Leave,
    /// What entered last is not started after all.
    Undo,
    Renew,
    /// It is gone, and comes back as another one.
    Die,
    /// So many milliseconds pass.
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<(usize, Event)>> {
    let event = prop_oneof![
        8 => Just(Event::Enter),
        5 => Just(Event::Leave),
        3 => Just(Event::Undo),
        2 => Just(Event::Renew),
        1 => Just(Event::Die),
        3 => (0..20_000_u64).prop_map(Event::Pass),
    ];
    prop::collection::vec((0..REPLICAS, event), 1..400)
}

#[derive(Default)]
struct Replicas {
    now: u64,
    shared: SharedQuota,
    local: [LocalQuota; REPLICAS],
    renewed_at: [Timestamp; REPLICAS],
    deaths: i64,
    ids: [i64; REPLICAS],
    /// In flight, with the time.
    entered: [Vec<(Start, u64)>; REPLICAS],
    /// Those that have ended.
    started: Vec<u64>,
}

impl Replicas {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn ask(&mut self, at: usize, limits: QuotaLimits, ask: Ask) {
        let now = self.now();
        let grant = self.shared.grant(now, limits, self.ids[at], ask);
        self.local[at].receive(now, &grant);
        self.renewed_at[at] = now;
    }

    fn happen(&mut self, at: usize, event: Event, limits: QuotaLimits) {
        match event {
            Event::Enter => {
                let entered = self.local[at].enter(self.now(), limits).or_else(|_| {
                    let ask = self.local[at].ask(self.now(), limits, 1);
                    self.ask(at, limits, ask);
                    self.local[at].enter(self.now(), limits)
                });
                self.entered[at].extend(entered.map(|start| (start, self.now)));
            }
            Event::Leave => {
                if let Some((_, time)) = self.entered[at].pop() {
                    self.local[at].leave();
                    self.started.push(time);
                }
            }
            Event::Undo => {
                if let Some((start, _)) = self.entered[at].pop() {
                    self.local[at].undo(start);
                }
            }
            Event::Renew => self.renew(at, limits),
            Event::Die => {
                self.deaths += 1;
                self.ids[at] = 100 + self.deaths;
                self.local[at] = LocalQuota::default();
                self.started.extend(self.entered[at].drain(..).map(|(_, time)| time));
            }
            Event::Pass(millis) => {
                // As often as the task looks, at least as often as holds need it.
                for _ in 0..millis.div_ceil(4_000) {
                    self.now += millis.min(4_000);
                    (0..REPLICAS).for_each(|at| self.renew(at, limits));
                }
            }
        }
    }

    fn renew(&mut self, at: usize, limits: QuotaLimits) {
        let (now, renewed_at) = (self.now(), self.renewed_at[at]);
        if let Some(ask) = self.local[at].renew(now, renewed_at, Duration::from_millis(50)) {
            self.ask(at, limits, ask);
        }
    }
}

proptest! {
    #[test]
    fn no_limit_is_exceeded_whatever_replicas_do(
        events in events(),
        per_minute in prop::option::of(0..100_u64),
        in_flight in prop::option::of(0..100_u64),
    ) {
        let limits = QuotaLimits { per_minute, in_flight };
        let mut replicas = Replicas { now: 1_700_000_000_000, ids: [1, 2, 3], ..Replicas::default() };
        for (at, event) in events {
            replicas.happen(at, event, limits);
            if let Some(limit) = in_flight {
                let all: u64 = replicas.local.iter().map(|local| local.in_flight).sum();
                prop_assert!(all <= limit, "{all} in flight of {limit}");
            }
            if let Some(limit) = per_minute {
                // Any minute by the clock; leave to start may be used a second later.
                let minute = replicas.now / MINUTE_MILLIS;
                let entered = replicas.entered.iter().flatten().map(|(_, time)| time);
                let times = entered.chain(&replicas.started);
                let started = times.filter(|time| **time / MINUTE_MILLIS == minute).count() as u64;
                prop_assert!(started <= limit + REPLICAS as u64 * (limit / LEASE_PART).max(1), "{started} of {limit}");
            }
        }
    }
}

/// A process that is alone, in a minute that has just begun.
struct Alone {
    limits: QuotaLimits,
    shared: SharedQuota,
    local: LocalQuota,
}

impl Alone {
    fn new(per_minute: u64, in_flight: Option<u64>) -> Self {
        let limits = QuotaLimits { per_minute: Some(per_minute), in_flight };
        Self { limits, shared: SharedQuota::default(), local: LocalQuota::default() }
    }

    fn enter(&mut self, millis: u64) -> Result<Start, Lacks> {
        let now = Timestamp::from_millis(28_333_334 * MINUTE_MILLIS + millis);
        let grant = self.shared.grant(now, self.limits, 0, self.local.ask_alone(now, self.limits));
        self.local.receive(now, &grant);
        self.local.enter(now, self.limits)
    }
}

#[test]
fn a_request_without_a_place_uses_no_start_up() {
    let mut alone = Alone::new(3, Some(1));
    alone.enter(0).unwrap();
    for second in 1..50 {
        assert_eq!(alone.enter(second * 1_000), Err(Lacks::Hold));
    }
    for millis in [50_000, 50_001] {
        alone.local.leave();
        alone.enter(millis).unwrap();
    }
    alone.local.leave();
    assert_eq!(alone.enter(50_002), Err(Lacks::Start));
}

#[test]
fn a_request_that_another_limit_refused_uses_no_start_up() {
    let mut alone = Alone::new(3, None);
    for millis in [0, 1, 1_500, 3_000, 30_000] {
        let start = alone.enter(millis).unwrap();
        alone.local.undo(start);
    }
    for millis in [40_000, 50_000, 59_000] {
        alone.enter(millis).unwrap();
    }
    assert_eq!(alone.enter(59_999), Err(Lacks::Start));
    // Taken in that minute, given back in the next: it is the one before that it counted in.
    let mut late = Alone::new(3, None);
    let start = late.enter(59_999).unwrap();
    late.local.undo(start);
    for _ in 0..3 {
        late.enter(61_000).unwrap();
    }
    assert_eq!(late.enter(61_001), Err(Lacks::Start));
}

#[test]
fn who_waits_as_long_as_told_may_start() {
    for (before, now_millis) in [(0, 0), (0, 59_999), (5, 0), (5, 30_000)] {
        let minute = 28_000_000;
        let mut window = RateWindow { minute: minute - 1, started: before, started_before: 0 };
        let mut now = Timestamp::from_millis(minute * MINUTE_MILLIS + now_millis);
        while window.take(now, 5, 1) == 1 {}
        now = now + window.retry_after(now, 5) + Duration::from_millis(1);
        assert_eq!(window.take(now, 5, 1), 1, "{before} {now_millis}");
    }
    assert_eq!(RateWindow::default().retry_after(Timestamp::default(), 0), Duration::from_secs(60));
}

#[test]
fn a_clock_that_was_set_back_keeps_nobody_out() {
    let mut alone = Alone::new(2, Some(1));
    let hour = 60 * MINUTE_MILLIS;
    for millis in [hour, hour + 1] {
        alone.enter(millis).unwrap();
        alone.local.leave();
    }
    assert_eq!(alone.enter(hour + 2), Err(Lacks::Start));
    // Another replica died meanwhile.
    let until = Timestamp::from_millis(28_333_334 * MINUTE_MILLIS + hour) + HOLD_TIME;
    alone.shared.holds.insert(1, Hold { count: 1, until });
    alone.enter(0).unwrap();
}
