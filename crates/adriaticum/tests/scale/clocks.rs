//! Several replicas with different clocks: under random failures of their database and jumps of their clocks, no
//! acknowledged request is lost, pruned or counted twice, and a revoked key stays revoked.
//!
//! A SQLite file with rows of the last months is copied to PostgreSQL with a synchronous standby. Three replicas start
//! on it with clocks that are months apart, and get their first requests while the copy is run a second time. Meanwhile
//! connections are cut and frozen, replicas are killed and started with other clocks, clocks jump, the server is
//! suspended, the copy is tried once more, and the standby takes over halfway.
//!
//! `TEST_STEPS` makes it longer, `TEST_SEED` repeats its choices. Before the ledger had its own time, it failed with "165
//! of 610 were acknowledged and lost": the start of a replica whose clock was 100 days ahead dropped the days of all
//! replicas, and rows that a replica recorded with a clock 100 days behind were deleted by the next replica that started.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;
use testbed::{
    Behaviour, Cluster, Connection, EndOnDrop, FakeRuntime, Installation, Request, Service, ShiftedClock, chat_body,
    seeded_rng,
};

use crate::ADRIATICUM;
use crate::load::Load;
use crate::proxy::Proxy;

const STEPS: usize = 12;
/// The clocks of replicas, in days ahead. Rows are kept for 90 days.
const CLOCKS: [i64; 7] = [0, 1, -2, 100, -100, 400, -400];
/// The ages of the copied rows. None is old enough to be deleted.
const COPIED_DAYS: [i64; 4] = [-80, -40, -1, 0];
const EVERYTHING: &str = "36500d";

struct Replica {
    service: Service,
    clock: ShiftedClock,
    /// In front of the first server, and of its standby.
    proxies: [Proxy; 2],
}

impl Replica {
    fn start(runtime: &FakeRuntime, database: &str, servers: [SocketAddr; 2], days: i64) -> Self {
        let (clock, proxies) = (ShiftedClock::new(days), servers.map(Proxy::start));
        let hosts = proxies.each_ref().map(|proxy| proxy.address().to_string()).join(",");
        let url = format!("postgres://adriaticum@{hosts}/{database}");
        let service = ADRIATICUM.service_with(&[runtime]).set("database_url", &url).clock(&clock);
        let service = service.set("database.timeout", "2s").start();
        Self { service, clock, proxies }
    }
}

#[test]
fn no_acknowledged_request_is_lost_by_failures_of_databases_and_clocks() {
    let steps = std::env::var("TEST_STEPS").map_or(STEPS, |steps| steps.parse().expect("TEST_STEPS is a number"));
    let mut rng = seeded_rng();
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let (source, key, copied) = source(&runtime);
    let cluster = Cluster::start(&[]);
    let database = cluster.create_database();
    source.run_ok(&["migrate", "--to", &database]);
    let standby = cluster.start_copy();
    let name = database.rsplit_once('/').unwrap().1;
    let servers = [&cluster, &standby].map(Cluster::address);
    let mut replicas: Vec<_> = [0, 100, -100].map(|days| Replica::start(&runtime, name, servers, days)).into();
    let addresses = |replicas: &[Replica]| replicas.iter().map(|replica| replica.service.address()).collect::<Vec<_>>();
    let here = operator(&cluster.url_with(&standby, &database));

    let revocations = Revocations::default();
    let all = addresses(&replicas);
    let load = Load::during(&all, &key, &chat_body("hello"), |load| {
        // The second copy either begins before any use of the first, or finds it used.
        let again = source.run(&["migrate", "--to", &database]);
        assert!(again.code == Some(0) || again.stderr.contains("Nothing was changed"), "{again:?}");
        println!("the second copy: {:?}", again.code);
        load.wait_for_completions(20);
        thread::scope(|scope| {
            scope.spawn(|| revocations.run(&here, || load.addresses()));
            let _until = EndOnDrop(&revocations.over);
            let mut failed_over = false;
            for step in 0..steps {
                let at = rng.usize(..replicas.len());
                let replica = &mut replicas[at];
                let choice = if step == steps / 2 { 7 } else { rng.usize(..7) };
                println!("step {step}: {choice} at replica {at}, {} answers", load.outcomes().len());
                match choice {
                    0 => replica.proxies.iter().for_each(Proxy::cut),
                    1 => {
                        replica.proxies.iter().for_each(|proxy| proxy.freeze(true));
                        load.wait_for_completions(30);
                        replica.proxies.iter().for_each(|proxy| proxy.freeze(false));
                    }
                    2 | 3 => {
                        replica.service.kill();
                        replica.clock.set_days(rng.choice(CLOCKS).unwrap());
                        replica.service.start_again();
                        load.call_at(&addresses(&replicas));
                    }
                    4 => replica.clock.set_days(rng.choice(CLOCKS).unwrap()),
                    5 => {
                        let server = if failed_over { &standby } else { &cluster };
                        server.freeze(true);
                        load.wait_for_outcomes(3, |_| true);
                        server.freeze(false);
                    }
                    6 => {
                        let url = if failed_over { standby.url(name) } else { database.clone() };
                        let refused = source.run(&["migrate", "--to", &url]);
                        assert!(refused.stderr.contains("Nothing was changed"), "{refused:?}");
                    }
                    _ => {
                        cluster.stop("immediate");
                        standby.promote();
                        failed_over = true;
                    }
                }
                load.wait_for_completions(rng.usize(10..40));
            }
        });
    });
    for replica in &replicas {
        ADRIATICUM.wait_for("service again", || (replica.service.chat(&key, "hello").status == 200).then_some(()));
    }
    let rows = rows(&here);
    load.assert_acknowledged_once(&rows);
    let lost = copied.iter().filter(|id| !rows.iter().any(|row| row["request_id"] == id.as_str())).count();
    assert_eq!(lost, 0, "of {} rows that were copied", copied.len());
    let sums: Value = serde_json::from_str(&here.run_ok(&["usage", "--json", "--since", EVERYTHING])).unwrap();
    let tokens: u64 = rows.iter().filter_map(|row| row["total_tokens"].as_u64()).sum();
    assert_eq!((sums["requests"].as_u64(), sums["total_tokens"].as_u64()), (Some(rows.len() as u64), Some(tokens)));
    let answers = load.outcomes().len();
    let kinds = load.kinds();
    println!("{steps} steps, {answers} answers, {} rows: {kinds:?}", rows.len());
    revocations.assert_final();
}

/// A SQLite installation with requests of the last months, with a key and the ids of the requests.
fn source(runtime: &FakeRuntime) -> (Service, String, Vec<String>) {
    let clock = ShiftedClock::new(COPIED_DAYS[0]);
    let mut source = ADRIATICUM.service_with(&[runtime]).clock(&clock).start();
    let key = source.key();
    for days in COPIED_DAYS {
        clock.set_days(days);
        (0..5).for_each(|_| drop(source.chat(&key, "hello").completion()));
    }
    source.signal(rustix::process::Signal::TERM);
    assert!(source.wait_for_exit().success());
    let ids = rows(&source).iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(ids.len(), 5 * COPIED_DAYS.len());
    source.unset_clock();
    (source, key, ids)
}

/// An installation whose commands work on a database.
fn operator(database: &str) -> Installation {
    let mut installation = ADRIATICUM.install();
    installation.set("database_url", database);
    installation
}

fn rows(installation: &Installation) -> Vec<Value> {
    let rows = installation.run_ok(&["usage", "--requests", "--json", "--limit", "1000000", "--since", EVERYTHING]);
    serde_json::from_str(&rows).unwrap()
}

/// Keys that are made, used at all replicas, revoked, and tried again.
#[derive(Default)]
struct Revocations {
    over: AtomicBool,
    revoked: Mutex<Vec<String>>,
    /// Requests that began after their key was revoked, with their statuses.
    tried: Mutex<Vec<(String, u16)>>,
}

impl Revocations {
    fn run(&self, operator: &Installation, addresses: impl Fn() -> Vec<SocketAddr>) {
        while !self.over.load(Ordering::Relaxed) {
            // Either command may fail while the database is unavailable, and is then repeated.
            let created = operator.run(&["keys", "create", "short-lived"]);
            if created.code != Some(0) {
                continue;
            }
            let key = created.stdout.trim_end();
            for address in addresses() {
                call(address, key);
            }
            while operator.run(&["keys", "revoke", &key[6..18]]).code != Some(0) {
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
            }
            self.revoked.lock().unwrap().push(key.to_owned());
            // Keys that were revoked earlier, too: a failover must not bring them back.
            let all = self.revoked.lock().unwrap().clone();
            for key in all.iter().rev().take(5) {
                for address in addresses() {
                    if let Some(status) = call(address, key) {
                        self.tried.lock().unwrap().push((key.clone(), status));
                    }
                }
            }
        }
    }

    fn assert_final(&self) {
        let (revoked, tried) = (self.revoked.lock().unwrap(), self.tried.lock().unwrap());
        println!("{} keys revoked, {} requests with them", revoked.len(), tried.len());
        assert!(tried.iter().any(|(_, status)| *status == 401), "none was tried");
        for (key, status) in tried.iter() {
            assert!(
                *status == 401 || *status == 503,
                "{status} with the key {}, which was revoked before",
                &key[6..18]
            );
        }
    }
}

/// The status of a request, if it got a response: the replica may have been killed.
fn call(address: SocketAddr, key: &str) -> Option<u16> {
    let mut connection = Connection::try_connect(address)?.with_timeout(ADRIATICUM.timeout());
    let sent = connection.send_while_open(Request::chat(key, chat_body("hello")).bytes());
    sent.then(|| connection.try_response()).flatten().map(|response| response.status)
}
