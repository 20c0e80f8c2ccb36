//! A soak test: all kinds of load at the same time for `SOAK_HOURS` (`make soak HOURS=1`), 20 seconds otherwise.
//! Well-behaved and hostile callers, people at the console and visitors who guess passwords, keys that are created and
//! revoked, backups, runtimes that fail at times; the service is stopped or killed under load and started again.
//!
//! When it is idle between the rounds, memory, open files and threads have not grown. After every life of the service
//! each acknowledged request is in the ledger once, and the sums count the same rows.
//!
//! The first fault that it found: forty wrong passwords at the same time took more than 300 MiB, permanently.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod callers;
mod vitals;

use std::collections::HashMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use testbed::{Behaviour, EndOnDrop, FakeRuntime, FakeSearch, Program, Service, Visitor, on_postgres, seeded_rng};

use crate::callers::{Crowd, Observations};
use crate::vitals::{Life, Vitals};

const ADRIATICUM: Program = Program::new(env!("CARGO_BIN_EXE_adriaticum")).with_timeout(Duration::from_secs(100));
const LIVES: u32 = 4;
const CALLERS: usize = 3;

/// The length of a round, and the number of rounds.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    round: Duration,
    rounds_per_life: u32,
}

impl Schedule {
    fn new(total: Duration) -> Self {
        let round = (total / 80).clamp(Duration::from_secs(2), Duration::from_secs(45));
        let rounds = (total.as_secs_f64() / round.as_secs_f64()).ceil() as u32;
        Self { round, rounds_per_life: (rounds / LIVES).max(2) }
    }
}

/// The hours of a long soak.
fn hours() -> Option<f64> {
    Some(std::env::var("SOAK_HOURS").ok()?.parse().expect("SOAK_HOURS is a number"))
}

#[test]
fn the_service_does_not_grow_under_all_kinds_of_load() {
    let total = hours().map_or(Duration::from_secs(20), |hours| Duration::from_secs_f64(hours * 3_600.0));
    soak(Schedule::new(total));
}

#[test]
#[ignore = "runs the model for SOAK_HOURS: `make soak`"]
fn the_embedded_engine_does_not_grow() {
    let total = Duration::from_secs_f64(hours().unwrap_or(0.01) * 3_600.0);
    soak_engine(Schedule::new(total));
}

fn soak(schedule: Schedule) {
    let mut rng = seeded_rng();
    let runtimes = [(); 3].map(|()| FakeRuntime::start(Behaviour::Echo));
    let search = FakeSearch::finding(&[json!({
        "title": "Dubrovnik", "url": "https://example.com/d", "content": "<p>About <b>41,000</b> people live there.</p>"
    })]);
    let mut service = ADRIATICUM
        .service_with(&runtimes.each_ref())
        .set("search.url", &search.url())
        .set("api.log_requests", "off")
        .start();
    let keys: Vec<_> = (0..=CALLERS).map(|_| service.key()).collect();
    Visitor::administrator(&service, "Ada");
    let mut ledger = Ledger::default();
    for life in 0..LIVES {
        let (observed, mut vitals) = (Observations::default(), Life::default());
        let mut person = Visitor::anonymous(&service);
        assert_eq!(person.sign_in("Ada").status, 303);
        let person = Mutex::new(person);
        for round in 0..=schedule.rounds_per_life {
            // The first round is the baseline for the others; the last one ends the service.
            let is_plain = round == 0 || round == schedule.rounds_per_life;
            let over = AtomicBool::new(false);
            let crowd = Crowd { service: &service, observed: &observed, over: &over };
            thread::scope(|scope| {
                let _end = EndOnDrop(&over);
                for key in &keys[1..] {
                    let rng = rng.fork();
                    scope.spawn(|| crowd.behave(key, rng));
                }
                if !is_plain {
                    let mut fork = || rng.fork();
                    let (first, second, third, fourth) = (fork(), fork(), fork(), fork());
                    scope.spawn(|| crowd.misbehave(&keys[0], first));
                    scope.spawn(|| crowd.visit(&person, second));
                    scope.spawn(|| crowd.operate(third));
                    scope.spawn(|| crowd.disturb(&runtimes, fourth));
                }
                thread::sleep(schedule.round);
                if round == schedule.rounds_per_life && life % 2 == 0 {
                    service.signal(Signal::KILL);
                }
            });
            report(life, round, &observed);
            runtimes.iter().for_each(FakeRuntime::forget);
            if round < schedule.rounds_per_life {
                wait_until_idle(&service);
                vitals.add(Vitals::read(service.pid()));
            }
            if round == schedule.rounds_per_life / 2 && !on_postgres() {
                assert_backup_holds(&service, &observed, life);
            }
        }
        end_life(&mut service, life);
        println!("life {life}: {:?}", vitals.first_and_last());
        assert_eq!(vitals.growth(), None, "{vitals:?}");
        ledger.check(&service, &observed);
        if life + 1 < LIVES {
            service.start_again();
        }
    }
    println!("{} acknowledged, {} rows, none lost, none duplicated", ledger.acknowledged, ledger.rows.len());
}

fn soak_engine(schedule: Schedule) {
    let mut rng = seeded_rng();
    let mut installation = ADRIATICUM.install();
    installation.use_cached_tuning();
    installation.set("model", ADRIATICUM.default_model().to_str().unwrap());
    installation.set("engine.cells", "12288");
    let mut command = installation.command(&["serve"]);
    command.stderr(fs::File::create(installation.folder().join("log")).unwrap());
    let mut service = Service::start_as(installation, &mut command);
    let keys: Vec<_> = (0..2).map(|_| service.key()).collect();
    ADRIATICUM.wait_for("the model", || (service.chat(&keys[0], "hello").status == 200).then_some(()));
    let (observed, mut serve, mut engine) = (Observations::default(), Life::default(), Life::default());
    let engine_pid = child_of(service.pid());
    for round in 0..schedule.rounds_per_life * LIVES {
        let over = AtomicBool::new(false);
        let crowd = Crowd { service: &service, observed: &observed, over: &over };
        thread::scope(|scope| {
            let _end = EndOnDrop(&over);
            for key in &keys {
                let rng = rng.fork();
                scope.spawn(|| crowd.converse(key, rng));
            }
            thread::sleep(schedule.round);
        });
        wait_until_idle(&service);
        report(0, round, &observed);
        serve.add(Vitals::read(service.pid()));
        engine.add(Vitals::read(engine_pid));
    }
    assert_eq!(child_of(service.pid()), engine_pid, "the engine was not restarted");
    end_life(&mut service, 1);
    println!("serve: {:?}\nengine: {:?}", serve.first_and_last(), engine.first_and_last());
    assert_eq!((serve.growth(), engine.growth()), (None, None), "{serve:?} {engine:?}");
    Ledger::default().check(&service, &observed);
}

fn child_of(serve: Pid) -> Pid {
    let serve = serve.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{serve}/task/{serve}/children")).unwrap();
    Pid::from_raw(children.split_whitespace().next().expect("an engine").parse().unwrap()).unwrap()
}

/// In odd lives the service is stopped and must exit with 0; in even lives it was killed.
fn end_life(service: &mut Service, life: u32) {
    if life % 2 == 1 {
        service.signal(Signal::TERM);
        assert_eq!(service.wait_for_exit().code(), Some(0));
    }
    service.kill();
}

fn wait_until_idle(service: &Service) {
    ADRIATICUM.wait_for("no request in flight", || {
        let metrics = service.get_ops("/metrics").1;
        ["adriaticum_requests_in_flight 0", "adriaticum_ledger_queue_rows 0"]
            .iter()
            .all(|line| metrics.lines().any(|there| there == *line))
            .then_some(())
    });
}

fn report(life: u32, round: u32, observed: &Observations) {
    let mut latencies = std::mem::take(&mut *observed.latencies.lock().unwrap());
    latencies.sort_unstable();
    let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!(
        "life {life}, round {round}: {} acknowledged, p50 {:?}, p99 {:?}, {} hang-ups, {} refused sign-ins, {} revocations",
        observed.acknowledged.lock().unwrap().len(),
        at(0.5),
        at(0.99),
        observed.hang_ups.load(Ordering::Relaxed),
        observed.refused_sign_ins.load(Ordering::Relaxed),
        observed.revocations.load(Ordering::Relaxed),
    );
}

/// A backup holds every request that was acknowledged before it began.
fn assert_backup_holds(service: &Service, observed: &Observations, life: u32) {
    let before = observed.acknowledged.lock().unwrap().clone();
    let began = Instant::now();
    let folder = service.folder().join(format!("backup-{life}"));
    fs::create_dir(&folder).unwrap();
    let copy = folder.join("adriaticum.db");
    service.run_ok(&["backup", copy.to_str().unwrap()]);
    let rows =
        service.run_ok(&["usage", "--requests", "--json", "--limit", "1000", "--data-dir", folder.to_str().unwrap()]);
    let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
    let ids: Vec<_> = rows.iter().map(|row| row["request_id"].as_str().unwrap()).collect();
    for (id, status) in before.iter().rev().take(200) {
        assert!(ids.contains(&id.as_str()), "{id} ({status}) is not in the backup");
    }
    println!("life {life}: backup in {:?}", began.elapsed());
    fs::remove_dir_all(folder).unwrap();
}

/// The ledger's rows after the last life, and the number of acknowledged requests of all lives.
#[derive(Default)]
struct Ledger {
    rows: HashMap<String, u64>,
    acknowledged: usize,
}

impl Ledger {
    fn check(&mut self, service: &Service, observed: &Observations) {
        let rows = service.rows();
        self.rows = rows
            .iter()
            .map(|row| (row["request_id"].as_str().unwrap().to_owned(), row["status"].as_u64().unwrap()))
            .collect();
        assert_eq!(self.rows.len(), rows.len(), "no row is there twice");
        let acknowledged = observed.acknowledged.lock().unwrap();
        for (id, status) in acknowledged.iter() {
            let recorded = self.rows.get(id).unwrap_or_else(|| panic!("{id} ({status}) was acknowledged and lost"));
            assert_eq!(*recorded, u64::from(*status), "{id}");
        }
        self.acknowledged += acknowledged.len();
        assert_eq!(service.usage()["requests"], rows.len(), "the sums count the same rows");
    }
}
