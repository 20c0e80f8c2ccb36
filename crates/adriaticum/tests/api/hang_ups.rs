//! Callers that hang up at any point: pages, forms, completions and the playground's requests are cut off at random times
//! from the first byte to the last, on both databases. The network to PostgreSQL is slow here, so that each wait takes
//! some time. Afterwards nothing is left of them: no transaction, no lock and no place in its queue, no permit, no lease.
//! No runtime is blamed, every row is there once, and the next caller is served immediately. `TEST_HANG_UPS` sets the
//! number of requests that are cut off.
//!
//! Faults that were found: a hang-up during `BEGIN` returned an open transaction to the pool, with the lock that all
//! changes take; others got 503, and a revocation took as long as the database's timeout. After that was fixed, changes
//! of callers that had gone still waited for that lock, with one connection each, ahead of changes of waiting callers
//! (8 of 12 after ten seconds).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::{
    Behaviour, Cluster, Connection, FakeRuntime, Request, Response, Rng, Service, ServiceBuilder, SlowNetwork,
    all_at_once, chat_body, seeded_rng, wait_for,
};

use crate::ADRIATICUM;

/// Much longer than `PROMPTLY`, so that a test that waits for it fails.
const DATABASE_TIMEOUT: &str = "40s";
/// How long the next caller may wait on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(10);
/// Added to everything that PostgreSQL sends.
const NETWORK_DELAY: Duration = Duration::from_millis(3);
/// The pool's limit, and the connections for keys and ledger.
const CONNECTIONS: usize = 3;
const OTHER_CONNECTIONS: usize = 2;
/// Concurrent callers.
const CALLERS: usize = 3;
const DEFAULT_HANG_UPS: usize = 450;
const PASSWORD: &str = "a few good words";

/// A service, and a person who is signed in to its console.
struct World {
    service: Service,
    key: String,
    console: SocketAddr,
    cookie: String,
    token: String,
    runtimes: Vec<FakeRuntime>,
}

impl World {
    fn new(prepare: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> Self {
        Self::with([5, 9].map(|millis| Behaviour::EchoAfter(Duration::from_millis(millis))), prepare)
    }

    fn with(runtimes: [Behaviour; 2], prepare: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> Self {
        let runtimes: Vec<_> = runtimes.into_iter().map(FakeRuntime::start).collect();
        let service = ADRIATICUM.service_with(&runtimes.iter().collect::<Vec<_>>()).set("api.max_requests", "64");
        let service = prepare(service).start();
        let origin = service.banner_value("Console").unwrap();
        let console = origin.strip_prefix("http://").unwrap().replace("localhost", "127.0.0.1").parse().unwrap();
        let key = service.key();
        let mut world = Self { service, key, console, cookie: String::new(), token: String::new(), runtimes };
        world.sign_in();
        world
    }

    fn sign_in(&mut self) {
        let link = self.service.run_ok(&["accounts", "invite", "Ada", "--role", "admin"]);
        let path = format!("/welcome/{}", link.trim().split_once("/welcome/").unwrap().1);
        let page = self.fetch(&self.request("GET", &path, ""));
        self.take_cookie_and_token(&page, &page);
        let form =
            format!("name=Ada&email=ada%40example.com&password={PASSWORD}&again={PASSWORD}&token={}", self.token);
        let welcome = self.fetch(&self.request("POST", &path, &form.replace(' ', "+")));
        assert_eq!(welcome.status, 303, "{welcome:?}");
        self.take_cookie_and_token(&welcome, &page);
        let page = self.fetch(&self.request("GET", "/keys", ""));
        self.take_cookie_and_token(&welcome, &page);
    }

    fn take_cookie_and_token(&mut self, response: &Response, page: &Response) {
        let cookies = response.headers.iter().filter(|(name, _)| name == "set-cookie");
        let mut cookies = cookies.filter_map(|(_, value)| value.split(';').next()).filter(|pair| !pair.ends_with('='));
        self.cookie = cookies.find(|pair| pair.contains("session") || pair.contains("guest")).unwrap().to_owned();
        let page = String::from_utf8_lossy(&page.body);
        let token = page.split_once("name=\"token\" value=\"").unwrap_or_else(|| panic!("{page}")).1;
        self.token = token.split_once('"').unwrap().0.to_owned();
    }

    fn request(&self, method: &str, target: &str, body: &str) -> Request {
        Request::chat("", body)
            .without("Authorization")
            .method(method)
            .target(target)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Cookie", &self.cookie)
    }

    fn form(&self, target: &str, fields: &str) -> Request {
        self.request("POST", target, &format!("{fields}&token={}", self.token))
    }

    fn fetch(&self, request: &Request) -> Response {
        Connection::connect(self.console).send(request.bytes()).response()
    }

    /// The id of the first key, which the API's requests use.
    fn key_id(&self) -> String {
        let keys: Value = serde_json::from_str(&self.service.run_ok(&["keys", "list", "--json"])).unwrap();
        keys[0]["id"].as_str().unwrap().to_owned()
    }

    /// Every kind of request, its address, and the status for a caller that waits.
    fn requests(&self) -> Vec<(SocketAddr, Request, u16)> {
        let id = self.key_id();
        let pages =
            ["/", "/keys", &format!("/keys/{id}"), "/usage", "/usage.csv", "/requests", "/requests.csv", "/team"];
        let pages = pages.into_iter().chain(["/audit", "/account"]);
        let mut all: Vec<_> = pages.map(|page| (self.console, self.request("GET", page, ""), 200)).collect();
        all.push((self.console, self.form("/keys", "name=new&completions=yes&lifetime="), 200));
        all.push((self.console, self.form(&format!("/keys/{id}/rename"), "name=renamed"), 303));
        all.push((self.console, self.form("/account/name", "name=Ada"), 303));
        all.push((self.console, self.form("/team/invitations", "note=Bob&role=developer&lifetime=7d"), 200));
        let body = chat_body("Hello!");
        let playground = self.request("POST", "/playground", &body).header("x-form-token", &self.token);
        all.push((self.console, playground, 200));
        let completion = Request::chat(&self.key, body);
        // Three completions, one of them chunked, because there are many pages.
        for request in [completion.clone(), completion.clone(), completion.chunked(7)] {
            all.push((self.service.address(), request, 200));
        }
        all
    }

    /// The next caller reads and changes something without waiting.
    fn serve_the_next_caller(&self, after: &str) {
        let began = Instant::now();
        for (request, status) in
            [(self.request("GET", "/keys", ""), 200), (self.form("/account/name", "name=Ada"), 303)]
        {
            let response =
                Connection::connect(self.console).with_timeout(PROMPTLY).send(request.bytes()).try_response();
            let status_got = response.map(|response| response.status);
            assert_eq!(status_got, Some(status), "after {after}, {:?} later: {request:?}", began.elapsed());
        }
        assert!(began.elapsed() < PROMPTLY, "after {after} the next caller waited for {:?}", began.elapsed());
        self.service.chat(&self.key, "Hello!").completion();
    }

    fn figures(&self) -> BTreeMap<String, f64> {
        let (_, text) = self.service.get_ops("/metrics");
        let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        lines.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    }

    /// Waits until nothing is in flight; fails if rows and sums disagree.
    fn assert_nothing_is_left(&self) {
        let gauges =
            ["adriaticum_requests_in_flight", "adriaticum_runtime_requests_in_flight{", "adriaticum_ledger_queue_rows"];
        let busy = |figures: &BTreeMap<String, f64>| -> Vec<(String, f64)> {
            let of = figures.iter().filter(|(name, value)| {
                **value != 0.0 && gauges.iter().any(|gauge| name.starts_with(gauge) && !name.ends_with("_limit"))
            });
            of.map(|(name, value)| (name.clone(), *value)).collect()
        };
        let figures = wait_for("nothing in flight", || Some(self.figures()).filter(|figures| busy(figures).is_empty()));
        assert_eq!(figures["adriaticum_requests_not_recorded_total"], 0.0);
        let rows = self.service.rows();
        let mut ids: Vec<_> = rows.iter().map(|row| row["request_id"].to_string()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), rows.len(), "a row is there twice");
        let usage = self.service.usage();
        assert_eq!(usage["requests"], json!(rows.len()), "{usage}");
        for row in &rows {
            let outcome = (row["status"].as_u64(), row["code"].as_str());
            assert!([(Some(200), None), (Some(499), Some("client_closed"))].contains(&outcome), "{row}");
        }
        let completed = rows.iter().filter(|row| row["status"] == 200).count();
        let counted = figures[r#"adriaticum_requests_total{status="200"}"#];
        assert_eq!(counted, completed as f64, "counted and recorded requests");
    }

    /// A hang-up is not a failure of the runtime.
    fn assert_no_runtime_is_blamed(&self) {
        for (name, value) in self.figures() {
            let of = |metric: &str| name.starts_with(&format!("adriaticum_runtime_{metric}{{"));
            assert!(!of("requests_failed_total") || value == 0.0, "{name} {value}");
            assert!(!of("up") || value == 1.0, "{name} {value}");
            assert!(!of("share") || value > 0.0, "{name} {value}");
        }
    }
}

/// Cuts requests off at random times, by concurrent callers.
fn hang_up(world: &World, rng: &mut Rng, count: usize) {
    let requests = world.requests();
    // The undisturbed duration of each request. This also sends each one once.
    let times: Vec<_> = requests
        .iter()
        .map(|(address, request, status)| {
            let began = Instant::now();
            let response = Connection::connect(*address).send(request.bytes()).response();
            assert_eq!(response.status, *status, "{request:?}: {response:?}");
            began.elapsed()
        })
        .collect();
    let callers: Vec<_> = (0..CALLERS).map(|_| rng.fork()).collect();
    let cut: usize = all_at_once(&callers, |rng| {
        let (mut rng, mut cut) = (rng.clone(), 0);
        for _ in 0..count / CALLERS {
            let chosen = rng.usize(..requests.len());
            let (address, request, _) = &requests[chosen];
            let bytes = request.bytes();
            let mut caller = Connection::connect(*address);
            // Some hang up before the request is complete.
            let part = if rng.u8(..8) == 0 { rng.usize(..bytes.len()) } else { bytes.len() };
            caller.send_while_open(&bytes[..part]);
            thread::sleep(times[chosen].mul_f64(rng.f64() * 1.1));
            cut += 1;
        }
        cut
    })
    .into_iter()
    .sum();
    println!("{cut} requests were cut off");
}

fn hang_ups() -> usize {
    std::env::var("TEST_HANG_UPS").map_or(DEFAULT_HANG_UPS, |count| count.parse().unwrap())
}

#[test]
fn callers_that_hang_up_anywhere_leave_nothing_behind_on_sqlite() {
    let world = World::new(ServiceBuilder::on_sqlite);
    hang_up(&world, &mut seeded_rng(), hang_ups());
    world.serve_the_next_caller("hang-ups");
    world.assert_nothing_is_left();
    world.assert_no_runtime_is_blamed();
}

#[test]
fn callers_that_hang_up_anywhere_leave_nothing_behind_on_postgres() {
    let database = Database::new();
    let world = World::new(|service| database.configure(service));
    let mut rng = seeded_rng();
    for part in 1..=3 {
        database.network.set_delay(NETWORK_DELAY);
        hang_up(&world, &mut rng, hang_ups() / 3);
        database.network.set_delay(Duration::ZERO);
        database.assert_nothing_is_left(&format!("part {part} of the hang-ups"));
        world.serve_the_next_caller("hang-ups");
    }
    world.assert_nothing_is_left();
    world.assert_no_runtime_is_blamed();
}

/// One of two runtimes drops its requests, so that half of them are retried, until its breaker opens.
#[test]
fn callers_that_hang_up_during_a_retry_leave_nothing_behind() {
    let slow = Behaviour::EchoAfter(Duration::from_millis(5));
    let world = World::with([Behaviour::Close, slow], ServiceBuilder::on_sqlite);
    hang_up(&world, &mut seeded_rng(), hang_ups() / 3);
    world.assert_nothing_is_left();
    let heard = || world.runtimes[0].requests().len();
    let before = heard();
    world.runtimes[0].set_behaviour(Behaviour::Echo);
    let mut number = 0;
    wait_for("a new request to the runtime", || {
        number += 1; // each conversation has a runtime that it prefers
        world.service.chat(&world.key, &format!("{number} bottles")).completion();
        (heard() > before).then_some(())
    });
}

/// Another replica may hold the lock of all changes, because it is slow or frozen.
#[test]
fn callers_that_give_up_waiting_for_another_replica_do_not_delay_others() {
    let database = Database::new();
    let world = World::new(|service| database.configure(service));
    let mut holder = Cluster::shared().session(&format!("{}?application_name=holder", database.url));
    holder.run("BEGIN; SELECT pg_advisory_xact_lock(x'6164726961000002'::bigint)");
    let rename = world.form("/account/name", "name=Ada");
    for _ in 0..12 {
        let mut caller = Connection::connect(world.console);
        caller.send(rename.bytes());
        Cluster::shared().wait_for_blocked(&database.url);
        drop(caller);
    }
    let page = Connection::connect(world.console)
        .with_timeout(PROMPTLY)
        .send(world.request("GET", "/keys", "").bytes())
        .response();
    assert_eq!(page.status, 200, "reading needs no lock");
    database.assert_nothing_is_left("12 callers that gave up");
    let open = database.count("true") - 1; // the holder
    assert!(open <= CONNECTIONS + OTHER_CONNECTIONS, "{open} connections");
    holder.run("ROLLBACK");
    world.serve_the_next_caller("12 callers that gave up");
    let (began, id) = (Instant::now(), world.key_id());
    let revoked = world.fetch(&world.form(&format!("/keys/{id}/revoke"), ""));
    assert_eq!(revoked.status, 303, "{revoked:?}");
    assert!(began.elapsed() < PROMPTLY, "a revocation took {:?}", began.elapsed());
    world.service.chat(&world.key, "Hello!").expect_error("invalid_api_key");
}

/// A killed replica cannot hang up. The server detects that no client waits for the lock.
#[test]
fn a_lock_wait_of_a_killed_replica_ends() {
    let database = Database::new();
    let mut world = World::new(|service| database.configure(service));
    let mut holder = Cluster::shared().session(&format!("{}?application_name=holder", database.url));
    holder.run("BEGIN; SELECT pg_advisory_xact_lock(x'6164726961000002'::bigint)");
    let mut caller = Connection::connect(world.console);
    caller.send(world.form("/account/name", "name=Ada").bytes());
    Cluster::shared().wait_for_blocked(&database.url);
    world.service.kill();
    database.assert_nothing_is_left("the replica was killed");
    assert_eq!(database.count("application_name <> 'holder'"), 0);
}

/// A replica that is frozen in the middle of a change keeps the others waiting no longer than the database's timeout.
#[test]
fn a_frozen_replica_does_not_keep_the_lock_of_all_changes() {
    let database = Database::new();
    let world = World::new(|service| database.configure(service).set("database_timeout", "3s"));
    let other = ADRIATICUM.service().set("database_url", &database.url).start();
    database.network.set_delay(Duration::from_millis(500));
    let mut caller = Connection::connect(world.console);
    caller.send(world.form("/account/name", "name=Ada").bytes());
    let holds = "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)";
    wait_for("a change that has the lock", || (database.count(holds) > 0).then_some(()));
    world.service.signal(Signal::STOP);
    other.key(); // a change
    world.service.signal(Signal::CONT);
    database.network.set_delay(Duration::ZERO);
    world.serve_the_next_caller("a freeze");
}

/// A database behind a slow network.
struct Database {
    url: String,
    network: SlowNetwork,
}

impl Database {
    fn new() -> Self {
        let cluster = Cluster::shared();
        Self { url: cluster.create_database(), network: SlowNetwork::to(cluster.address()) }
    }

    fn configure(&self, service: ServiceBuilder) -> ServiceBuilder {
        let url = self.url.replace(&Cluster::shared().address().to_string(), &self.network.address().to_string());
        service
            .set("database_url", &url)
            .set("database_connections", &CONNECTIONS.to_string())
            .set("database_timeout", DATABASE_TIMEOUT)
    }

    fn count(&self, condition: &str) -> usize {
        let name = self.url.rsplit_once('/').unwrap().1;
        let count = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = '{name}' AND backend_type = 'client backend' AND {condition}"
        );
        Cluster::shared().sql("postgres", &count).parse().unwrap()
    }

    /// Waits until the server does nothing for the service and holds no lock for it.
    fn assert_nothing_is_left(&self, after: &str) {
        let began = Instant::now();
        let left = "application_name <> 'holder' AND (state <> 'idle'
            OR pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory'))";
        loop {
            let left = self.count(left);
            if left == 0 {
                return;
            }
            assert!(
                began.elapsed() < PROMPTLY,
                "{:?} after {after}, {left} connections still work or hold locks for a caller that has gone",
                began.elapsed()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}
