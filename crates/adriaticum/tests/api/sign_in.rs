//! Sign-in under attack: anonymous attempts cost bounded memory and time, and people can still sign in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use testbed::{Service, all_at_once};

use crate::ADRIATICUM;
use crate::visitor::{PASSWORD, Visitor};

const MIB: u64 = 1 << 20;

/// A service that trusts the visitor addresses of a proxy on this machine.
fn start() -> Service {
    ADRIATICUM.service().set("trusted_proxies", "127.0.0.1").start()
}

fn address(number: usize) -> String {
    format!("203.0.{}.{}", 113 + number / 200, 1 + number % 200)
}

/// Argon2 needs 19 MiB. At most two such blocks exist, for any number of attempts.
#[test]
fn many_anonymous_sign_ins_take_little_memory() {
    let service = start();
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
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

    // Text that cannot be an account's address is not kept, and forms are smaller than 200 KB.
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

/// Ten networks try five times each, which causes no delay. A person waits for at most one attempt of each.
#[test]
fn a_person_signs_in_while_others_guess() {
    let service = start();
    drop(Visitor::new(&service).join(&service, "Ada", "developer"));
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    let guesses: Vec<usize> = (0..50).collect();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            all_at_once(&guesses, |number| {
                let visitor = visitor.forwarded_for(&address(number % 10));
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
        assert!(waited_for < 30, "{waited_for} guesses came first");
    });
}

/// The number of lines that contain `part`.
fn count(text: &str, part: &str) -> usize {
    text.lines().filter(|line| line.contains(part)).count()
}

#[test]
fn failed_sign_ins_are_counted_logged_and_audited_in_few_lines() {
    let service = start();
    let ada = Visitor::new(&service).join(&service, "Ada", "admin");
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    // A person typed a password into the e-mail field.
    let typed = ["ada%40example.com", "nobody%40example.com", "hunter2-is-secret", "hunter2%40is-secret"];
    let tries: Vec<usize> = (0..40).collect();
    all_at_once(&tries, |number| {
        let visitor = visitor.forwarded_for(&address(*number));
        assert_eq!(visitor.sign_in(&token, typed[number % typed.len()], "a wrong guess").status, 401);
    });
    let (_, metrics) = service.get_ops("/metrics");
    for (outcome, attempts) in [("succeeded", 0), ("failed", 40), ("refused", 0)] {
        let line = format!("adriaticum_console_sign_ins_total{{outcome=\"{outcome}\"}} {attempts}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    // One line for each account, and one for all others; further failures are summed up later.
    let audit = ADRIATICUM.wait_for("lines in the audit log", || {
        let page = ada.page("/audit").replace("<tr>", "\n<tr>");
        (count(&page, "failed to sign in as") == 2).then_some(page)
    });
    assert!(
        count(&audit, "<strong>ada@example.com</strong>") == 1 && count(&audit, "an unknown or disabled account") == 1
    );
    let log = service.log();
    assert_eq!(count(&log, "sign-in failed"), 2, "{log}");
    assert_eq!(count(&log, "ada@example.com"), 1, "{log}");
    for text in [&audit, &log] {
        assert!(!text.contains("hunter2") && !text.contains("nobody") && !text.contains("guess"), "{text}");
    }
    assert_eq!(visitor.sign_in(&token, "ada%40example.com", PASSWORD).status, 303);
    let (_, metrics) = service.get_ops("/metrics");
    assert!(metrics.contains("adriaticum_console_sign_ins_total{outcome=\"succeeded\"} 1"), "{metrics}");
}

#[test]
fn the_current_password_cannot_be_guessed_any_faster_than_at_sign_in() {
    let service = start();
    let (ada, token) = Visitor::new(&service).join(&service, "Ada", "admin").with_form("/account");
    let new = "password=another+good+one&again=another+good+one";
    let change = |current: &str| {
        let form = format!("token={token}&current={}&{new}", current.replace(' ', "+"));
        ada.send("POST", "/account/password", &form)
    };
    let began = Instant::now();
    for _ in 0..7 {
        assert_eq!(change("a wrong guess").status, 400);
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1500), "0.5 and 1 second are due after the fifth: {took:?}");
    ADRIATICUM.wait_for("a line in the audit log", || {
        ada.page("/audit").contains("failed to confirm a change of the account").then_some(())
    });
    assert_eq!(change(PASSWORD).status, 303, "the correct password is only delayed");
}

#[test]
fn sign_in_leads_back_to_this_site_only() {
    let service = start();
    drop(Visitor::new(&service).join(&service, "Ada", "admin"));
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    let password = PASSWORD.replace(' ', "+");
    for (next, to) in [
        ("%2Fusage%3Frange%3D7d", "/usage?range=7d"),
        ("%2F%09%2Fevil.example", "/"),
        ("%2F%0A%2Fevil.example", "/"),
        ("%2F%5Cevil.example", "/"),
        ("%2F%2Fevil.example", "/"),
        ("%09%2F%2Fevil.example", "/"),
    ] {
        let form = format!("token={token}&email=ada%40example.com&password={password}&next={next}");
        let response = visitor.send("POST", "/sign-in", &form);
        assert_eq!((response.status, response.header("location")), (303, Some(to)), "{next}");
    }
}
