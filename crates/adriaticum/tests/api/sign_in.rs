//! Sign-in under attack: what strangers type costs bounded memory and time, and people still get in.

use std::sync::atomic::{AtomicUsize, Ordering};

use testbed::{Service, all_at_once};

use crate::ADRIATICUM;
use crate::visitor::{PASSWORD, Visitor};

const MIB: u64 = 1 << 20;

/// A service that believes what a proxy on this machine says of its visitors.
fn start() -> Service {
    ADRIATICUM.service().set("trusted_proxies", "127.0.0.1").start()
}

fn address(number: usize) -> String {
    format!("203.0.{}.{}", 113 + number / 200, 1 + number % 200)
}

/// Argon2 works in 19 MiB. Two such blocks are made, whoever tries and however often.
#[test]
fn anonymous_sign_ins_take_little_memory_however_many_there_are() {
    let service = start();
    let (visitor, token) = Visitor::of(&service).with_form("/sign-in");
    let before = service.resident_bytes();
    let grown = || service.resident_bytes().saturating_sub(before) / MIB;

    let tries: Vec<usize> = (0..48).collect();
    let statuses = all_at_once(&tries, |_| visitor.sign_in(&token, "nobody%40example.com", "a wrong guess").status);
    assert!(statuses.contains(&401) && statuses.iter().all(|status| [401, 429].contains(status)), "{statuses:?}");
    let by_one = grown();

    for round in 0..2 {
        let tries: Vec<usize> = (0..60).map(|number| round * 60 + number).collect();
        let statuses = all_at_once(&tries, |number| {
            let visitor = visitor.forwarded_for(&address(*number));
            visitor.sign_in(&token, &format!("nobody{number}%40example.com"), "a wrong guess").status
        });
        assert!(statuses.iter().all(|status| *status == 401), "{statuses:?}");
    }
    let by_many = grown();

    // What cannot be an account's address is not kept at all, and a form is no place for 200 KB.
    let long = "x".repeat(200_000);
    for round in 0..3 {
        let tries: Vec<usize> = (0..60).map(|number| 200 + round * 60 + number).collect();
        all_at_once(&tries, |number| {
            let visitor = visitor.forwarded_for(&address(*number));
            visitor.sign_in(&token, &format!("{number}{long}%40example.com"), "a wrong guess").status
        });
    }
    let by_long_addresses = grown() - by_many.min(grown());
    println!("MiB: one address {by_one}, many {by_many}, long e-mail addresses {by_long_addresses} more");
    assert!(by_one < 80 && by_many < 90 && by_long_addresses < 24, "{by_one} {by_many} {by_long_addresses} MiB");
}

/// Fifteen networks queue all the attempts that they may. One person waits for one attempt of each at most.
#[test]
fn a_person_gets_in_while_others_guess() {
    let service = start();
    drop(Visitor::of(&service).join(&service, "Ada", "developer"));
    let (visitor, token) = Visitor::of(&service).with_form("/sign-in");
    let guesses: Vec<usize> = (0..120).collect();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            all_at_once(&guesses, |number| {
                let visitor = visitor.forwarded_for(&address(number % 15));
                let guessed = visitor.sign_in(&token, &format!("nobody{number}%40example.com"), "a wrong guess");
                assert_eq!(guessed.status, 401);
                answered.fetch_add(1, Ordering::SeqCst);
            });
        });
        ADRIATICUM.wait_for("guesses being verified", || (answered.load(Ordering::SeqCst) >= 5).then_some(()));
        let before = answered.load(Ordering::SeqCst);
        let person = visitor.forwarded_for("198.51.100.7");
        assert_eq!(person.sign_in(&token, "ada%40example.com", PASSWORD).status, 303);
        let waited_for = answered.load(Ordering::SeqCst) - before;
        println!("{waited_for} of {} guesses were verified before the person's password", guesses.len());
        assert!(waited_for < 60, "{waited_for} guesses came first");
    });
}
