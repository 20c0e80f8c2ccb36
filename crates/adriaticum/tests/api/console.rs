//! The console for scripts and operators: its address, its set-up link, and the `accounts` command.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;
use testbed::{Behaviour, Connection, FakeRuntime, Request, Service, chat_body};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

fn get(address: SocketAddr, host: &str, target: &str) -> (u16, String) {
    let request = Request::chat("", "").without("Authorization").method("GET").target(target).header("Host", host);
    let response = Connection::connect(address).send(request.bytes()).response();
    (response.status, String::from_utf8_lossy(&response.body).into_owned())
}

#[test]
fn a_command_prints_the_set_up_link_and_no_log_has_it() {
    let service = ADRIATICUM.service().start();
    assert!(service.banner().contains("accounts set-up") && !service.banner().contains("/welcome/"));
    let link = service.set_up_link();
    let (origin, path) = link.split_at(link.find("/welcome/").unwrap());
    let port: u16 = origin.strip_prefix("http://localhost:").unwrap().parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    assert!(get(address, "localhost", path).1.contains("Set up Adriaticum"));
    assert_eq!(get(address, "example.com", path).0, 404, "another host");
    assert_ne!(service.set_up_link(), link);
    let accounts = service.run_ok(&["accounts", "list"]);
    assert!(accounts.contains("no accounts yet"), "{accounts}");
}

#[test]
fn a_second_service_does_not_revoke_the_first_ones_set_up_link() {
    let first = ADRIATICUM.service().start();
    let second = ADRIATICUM.service().replica_of(&first).start();
    for service in [&first, &second] {
        let link = service.set_up_link();
        let (origin, path) = link.split_at(link.find("/welcome/").unwrap());
        let port: u16 = origin.rsplit(':').next().unwrap().parse().unwrap();
        assert!(get(([127, 0, 0, 1], port).into(), "localhost", path).1.contains("Set up Adriaticum"), "{link}");
    }
}

/// API and console on one address, distinguished by host, on SQLite and on one thread.
fn start_on_one_address(runtime: &FakeRuntime) -> Service {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    ADRIATICUM
        .service_with(&[runtime])
        .on_sqlite()
        .set("api.listen", &address)
        .set("api.threads", "1")
        .set("console.listen", &address)
        .set("api.base_url", "http://api.example.com/v1")
        .set("console.base_url", "http://console.example.com")
        .start()
}

/// A person who is signed in at that address.
fn sign_in_on_one_address(service: &Service) -> Visitor {
    Visitor::at(service.address(), "http://console.example.com").join(service, "Ada", "admin")
}

fn open_database(service: &Service) -> rusqlite::Connection {
    rusqlite::Connection::open(service.data().join("adriaticum.db")).unwrap()
}

/// Four people repeatedly load the usage of half a year of a busy service. On the API's thread, every request would wait
/// for at least one of these pages.
#[test]
fn long_reports_do_not_delay_the_api_on_the_same_address() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = start_on_one_address(&runtime);
    let ada = sign_in_on_one_address(&service);
    let request = Request::chat(&service.key(), chat_body("Hello!")).header("Host", "api.example.com");
    service.send(&request).completion();
    // Roll-ups like the one that the service is about to write, of 4,000 hours with 24 outcomes each.
    let database = open_database(&service);
    ADRIATICUM.wait_for("a roll-up", || {
        let rollups = database.query_row("SELECT count(*) FROM rollups", [], |row| row.get::<_, u64>(0));
        (rollups.unwrap() > 0).then_some(())
    });
    let filled = database.execute(
        "WITH RECURSIVE numbers (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < 95999)
        INSERT INTO rollups SELECT party, 1704067200 + 3600 * (number / 24), 200 + number % 24, 'filler',
            requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured, total_tokens,
            total_measured, last_at, latencies, account FROM numbers, rollups WHERE party = '' AND status = 200 AND code = ''",
        [],
    );
    assert_eq!(filled.unwrap(), 96_000);
    let (pages, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    const MAX_PAGES: usize = 25;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) && pages.load(Ordering::SeqCst) < MAX_PAGES {
                    let page = ada.page("/usage?range=custom&from=2024-01-01&to=2024-06-30");
                    assert!(page.contains("96,000"), "{page}");
                    pages.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        ADRIATICUM.wait_for("a first page", || (pages.load(Ordering::SeqCst) > 0).then_some(()));
        let before = pages.load(Ordering::SeqCst);
        let mut connection = service.connect();
        let answered = (0..50).take_while(|_| {
            connection.send(request.bytes()).response().completion();
            pages.load(Ordering::SeqCst) < MAX_PAGES
        });
        let answered = answered.count();
        let meanwhile = pages.load(Ordering::SeqCst) - before;
        is_over.store(true, Ordering::SeqCst);
        println!("{answered} requests were answered during {meanwhile} pages");
        assert!(answered == 50, "only {answered} requests during {meanwhile} pages");
    });
}

/// A change waits for the database's write lock on the thread that makes it.
#[test]
fn a_change_that_waits_does_not_delay_the_api_on_the_same_address() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = start_on_one_address(&runtime);
    let (ada, token) = sign_in_on_one_address(&service).with_form("/keys");
    let database = open_database(&service);
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let create = ada.request("POST", "/keys", &format!("token={token}&name=K&completions=yes"));
    let mut waiting = service.connect();
    waiting.send(create.bytes());
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let created = scope.spawn(|| {
            let response = waiting.response();
            is_answered.store(true, Ordering::SeqCst);
            response
        });
        // These are refused by looking up their key, so they need no lock.
        let request = Request::chat("adria_nonsense", chat_body("Hello!")).header("Host", "api.example.com");
        for number in 0..200 {
            service.send(&request).expect_error("invalid_api_key");
            assert!(!is_answered.load(Ordering::SeqCst), "request {number} was answered after the change");
        }
        database.execute_batch("ROLLBACK").unwrap();
        assert_eq!(created.join().unwrap().status, 200);
    });
}

#[test]
fn one_address_serves_both_hosts() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = start_on_one_address(&runtime);
    let key = service.key();
    let request = Request::chat(&key, chat_body("Hello!"));
    service.send(&request.clone().header("Host", "api.example.com")).completion();
    service.send(&request.header("Host", "console.example.com")).expect_error("not_found");
    assert!(get(service.address(), "console.example.com", "/sign-in").1.contains("Sign in"));
    assert!(get(service.address(), "api.example.com", "/sign-in").1.contains("not_found"));
    assert!(get(service.address(), "other.example.com", "/sign-in").1.contains("not_found"));
}

#[test]
fn hsts_is_sent_if_the_console_has_tls() {
    for (base_url, policy) in
        [("https://console.example.com", Some("max-age=31536000")), ("http://console.example.com", None)]
    {
        let service = ADRIATICUM.service().set("console.base_url", base_url).start();
        let visitor = Visitor::at(service.console_address(), base_url);
        for target in ["/sign-in", "/keys", "/nothing", "/v1/chat/completions"] {
            let response = visitor.send("GET", target, "");
            assert_eq!(response.header("strict-transport-security"), policy, "{base_url} {target}");
        }
    }
}

/// An attacker could keep an invitation for later.
#[test]
fn a_disabled_or_demoted_administrator_has_no_link_left() {
    let service = ADRIATICUM.service().start();
    drop(Visitor::new(&service).join(&service, "Ada", "admin"));
    for (name, command) in [("Mallory", &["accounts", "disable"][..]), ("Trudy", &["accounts", "role"][..])] {
        let (visitor, token) = Visitor::new(&service).join(&service, name, "admin").with_form("/team");
        let form = format!("token={token}&note=my+second+self&role=admin&lifetime=30");
        let page = String::from_utf8(visitor.send("POST", "/team/invitations", &form).body).unwrap();
        let path = page.split_once("/welcome/").expect("a link").1.split(['<', '"', '&']).next().unwrap();
        let path = format!("/welcome/{path}");
        assert!(page.contains("invitation as admin") && page.contains("my second self"), "{page}");
        assert_eq!(Visitor::new(&service).send("GET", &path, "").status, 200);

        let email = format!("{}@example.com", name.to_lowercase());
        let mut arguments = command.to_vec();
        arguments.push(&email);
        if command[1] == "role" {
            arguments.push("developer");
        }
        service.run_ok(&arguments);
        let dead = Visitor::new(&service).send("GET", &path, "");
        assert_eq!(dead.status, 404, "{name} could be an administrator again");
        let links = service.run_ok(&["accounts", "links", "--json"]);
        assert!(!links.contains("my second self"), "{links}");
    }
    let (ada, token) = Visitor::new(&service).with_form("/sign-in");
    let entered = ada.sign_in(&token, "ada%40example.com", crate::visitor::PASSWORD);
    assert_eq!(entered.status, 303);
}

#[test]
fn sharing_an_address_needs_different_hosts() {
    let mut installation = ADRIATICUM.install();
    installation.set("api.listen", "127.0.0.1:18099");
    installation.set("console.listen", "127.0.0.1:18099");
    let output = installation.run(&["serve"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stderr.contains("`console.listen`") && output.stderr.contains("different hosts"), "{output:?}");
}

#[test]
fn the_console_can_be_turned_off() {
    let service = ADRIATICUM.service().set("console.listen", "none").start();
    assert!(service.banner_value("Console").is_none() && service.banner_value("Set up").is_none());
}

#[test]
fn the_accounts_command_lists_invites_and_reports_errors() {
    let mut installation = ADRIATICUM.install();
    installation.set("console.listen", "127.0.0.1:8091");
    let link = installation.run_ok(&["accounts", "invite", "Ada", "--role", "admin", "--expires", "2d"]);
    assert!(link.trim().starts_with("http://localhost:8091/welcome/") && link.lines().count() == 1, "{link}");
    let listed: Value = serde_json::from_str(&installation.run_ok(&["accounts", "list", "--json"])).unwrap();
    assert_eq!(listed, Value::Array(Vec::new()));
    for (arguments, says) in [
        (["accounts", "reset", "nobody@example.com"], "there is no account nobody@example.com"),
        (["accounts", "disable", "nobody@example.com"], "there is no account"),
        (["accounts", "enable", "not an address"], "not an e-mail address"),
    ] {
        let output = installation.run(&arguments);
        assert!(output.code != Some(0) && output.stderr.contains(says), "{output:?}");
    }
    let links: Value = serde_json::from_str(&installation.run_ok(&["accounts", "links", "--json"])).unwrap();
    assert_eq!(
        (&links[0]["for"], &links[0]["role"], &links[0]["created_by"]),
        (&"Ada".into(), &"admin".into(), &"operator".into())
    );
    let listed = installation.run_ok(&["accounts", "links"]);
    assert!(listed.contains("invitation as admin") && !listed.contains("/welcome/"), "{listed}");
    let id = links[0]["id"].as_str().unwrap();
    assert!(installation.run_ok(&["accounts", "withdraw", id]).contains("no longer works"));
    for id in [id, "nonsense"] {
        let again = installation.run(&["accounts", "withdraw", id]);
        assert!(again.code != Some(0) && again.stderr.contains("there is no such link"), "{again:?}");
    }
    assert!(installation.run_ok(&["accounts", "links"]).contains("no pending links"));
    let output = installation.run(&["accounts", "invite", "Bob", "--role", "king"]);
    assert!(output.stderr.contains("the role is `admin` or `developer`"), "{output:?}");
}
