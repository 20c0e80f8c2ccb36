//! Anonymous visitors of the console: their connections lock no person out, least of all signed-in ones.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use testbed::{Connection, Request, Service, TIMEOUT, all_at_once, wait_for};

use crate::ADRIATICUM;
use crate::visitor::{PASSWORD, Visitor};

/// A delay that a person hardly notices, on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(3);
/// Max. connections of the console.
const MAX_CONNECTIONS: usize = 256;

/// An address in a separate /24.
fn network(number: usize) -> IpAddr {
    Ipv4Addr::new(127, 1 + (number / 250) as u8, (number % 250) as u8, 7).into()
}

fn form(bytes: usize) -> Request {
    Request::chat("", vec![b'x'; bytes])
        .without("Authorization")
        .target("/sign-in")
        .header("Content-Type", "application/x-www-form-urlencoded")
}

/// Half a form from each of the addresses; returns when the console has taken or refused all.
fn hold_forms(service: &Service, addresses: impl Iterator<Item = IpAddr>) -> Vec<Connection> {
    let half = form(1_000).head();
    let held = addresses.map(|address| {
        let mut connection = Connection::connect_from(address, service.console_address());
        connection.send_while_open(&half);
        connection
    });
    held.collect()
}

fn promptly<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = run();
    assert!(began.elapsed() < PROMPTLY, "{what} took {:?}", began.elapsed());
    result
}

#[test]
fn four_addresses_with_half_sent_forms_do_not_close_the_console() {
    let service = ADRIATICUM.service().start();
    drop(Visitor::new(&service).join(&service, "Ada", "developer"));
    for addresses in [[2, 3, 4, 5].map(|last| IpAddr::from([127, 0, 0, last])), [1, 2, 3, 4].map(network)] {
        let _held = hold_forms(&service, addresses.into_iter().flat_map(|address| vec![address; MAX_CONNECTIONS]));
        for visitor in [IpAddr::from([127, 0, 0, 9]), network(900)] {
            promptly("signing in", || {
                let (visitor, token) = Visitor::new(&service).from(visitor).with_form("/sign-in");
                assert_eq!(visitor.sign_in(&token, "ada%40example.com", PASSWORD).status, 303);
            });
        }
    }
}

#[test]
fn signed_in_people_have_a_reserve_for_any_number_of_networks_that_hold_forms() {
    let service = ADRIATICUM.service().start();
    let (ada, token) = Visitor::new(&service).join(&service, "Ada", "developer").with_form("/keys");
    let _held = hold_forms(&service, (0..MAX_CONNECTIONS + 20).map(network));
    promptly("a page and a form", || {
        assert_eq!(ada.send("GET", "/keys", "").status, 200);
        let created = ada.send("POST", "/keys", &format!("token={token}&name=K&completions=yes"));
        assert_eq!(created.status, 200);
    });
    // Other visitors are served once the forms have timed out.
    wait_for("the sign-in page", || {
        let page = Connection::connect_from(network(900), service.console_address())
            .send(form(0).method("GET").bytes())
            .try_response();
        page.filter(|page| page.status == 200)
    });
}

#[test]
fn an_anonymous_form_must_be_complete_within_five_seconds() {
    let service = ADRIATICUM.service().start();
    for drips in [false, true] {
        let mut connection = Connection::connect(service.console_address());
        let mut sender = connection.second_handle();
        let began = Instant::now();
        sender.send(form(10_000).head());
        let drip = std::thread::spawn(move || {
            while drips && began.elapsed() < TIMEOUT && sender.send_while_open(b"x") {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        assert_eq!(connection.response().status, 400);
        let took = began.elapsed();
        assert!((Duration::from_millis(4_900)..Duration::from_secs(9)).contains(&took), "{took:?}");
        connection.assert_closed();
        drip.join().unwrap();
    }
}

/// A service that trusts the visitor addresses of a proxy on this machine.
fn behind_a_proxy() -> Service {
    ADRIATICUM.service().set("trusted_proxies", "127.0.0.1").start()
}

#[test]
fn guesses_at_an_account_do_not_delay_a_network_where_its_owner_has_signed_in() {
    let service = behind_a_proxy();
    let home = Visitor::new(&service).forwarded_for("2001:db8:9:9::1");
    drop(home.clone().join(&service, "Ada", "developer"));
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    let guesses: Vec<usize> = (0..30).collect();
    all_at_once(&guesses, |number| {
        let stranger = visitor.forwarded_for(&format!("203.0.{number}.1"));
        assert_eq!(stranger.sign_in(&token, "ada%40example.com", "a wrong guess").status, 401);
    });
    let (home, token) = home.with_form("/sign-in");
    promptly("signing in at home", || {
        let neighbour = home.forwarded_for("2001:db8:9:9::2");
        assert_eq!(neighbour.sign_in(&token, "ada%40example.com", PASSWORD).status, 303);
    });
    let began = Instant::now();
    let abroad = home.forwarded_for("198.51.100.7");
    assert_eq!(abroad.sign_in(&token, "ada%40example.com", PASSWORD).status, 303, "delayed, but not locked out");
    assert!(began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
}

/// The guesses wait for eight seconds each, and a /48 has 65,536 networks of the size that counts as one client.
#[test]
fn guesses_from_one_large_network_leave_attempts_for_others() {
    let service = behind_a_proxy();
    drop(Visitor::new(&service).forwarded_for("192.0.2.1").join(&service, "Ada", "developer"));
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    let guess = |number: &usize| {
        let stranger = visitor.forwarded_for(&format!("2001:db8:1:{number:x}::1"));
        stranger.request("POST", "/sign-in", &format!("token={token}&email=nobody%40example.com&password=wrong"))
    };
    let first: Vec<usize> = (0..40).collect();
    all_at_once(&first, |number| assert_eq!(visitor.answer(&guess(number)).status, 401));
    let waiting: Vec<_> = (100..260)
        .map(|number| {
            let mut connection = Connection::connect(service.console_address());
            connection.send(guess(&number).bytes());
            connection
        })
        .collect();
    wait_for("no attempt being left for them", || waiting.iter().any(Connection::has_news).then_some(()));
    let person = visitor.forwarded_for("198.51.100.7");
    promptly("signing in", || assert_eq!(person.sign_in(&token, "ada%40example.com", PASSWORD).status, 303));
}
