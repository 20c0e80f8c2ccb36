//! Races during sign-in: a verified password must still be valid when the session begins, and attempts are counted before
//! they are checked. `SIGN_IN_RACES` sets the number of races.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testbed::{Response, Service, all_at_once};
use totp_rs::{Builder, Secret};

use crate::ADRIATICUM;
use crate::visitor::{PASSWORD, Visitor};

const OLD_PASSWORD: &str = PASSWORD;

fn start() -> Service {
    ADRIATICUM.service().set("trusted_proxies", "127.0.0.1").start()
}

fn races() -> usize {
    std::env::var("SIGN_IN_RACES").map_or(10, |races| races.parse().unwrap())
}

/// Each in a separate network.
fn address(number: usize) -> String {
    format!("203.{number}.113.7")
}

fn body(response: Response) -> String {
    String::from_utf8(response.body).unwrap()
}

pub(crate) fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    text.split_once(before).and_then(|(_, rest)| rest.split_once(after)).unwrap_or_else(|| panic!("{before}: {text}")).0
}

/// Adds an authenticator app to the account; returns its recovery codes.
pub(crate) fn add_app(person: &Visitor) -> Vec<String> {
    let (person, token) = person.clone().with_form("/account/second-factor/app");
    let key = between(&person.page("/account/second-factor/app"), "<code id=\"key\">", "<").to_owned();
    let app = Builder::new().with_secret(Secret::try_from_base32(&key).unwrap()).build().unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let password = OLD_PASSWORD.replace(' ', "+");
    let form = format!("token={token}&key={key}&code={}&password={password}", app.generate(now));
    let added = body(person.send("POST", "/account/second-factor/app", &form));
    between(&added, "<pre id=\"codes\">", "</pre>").split_whitespace().map(str::to_owned).collect()
}

/// A person who has entered the correct password and has to enter a code.
fn at_second_step(visitor: &Visitor, token: &str) -> Visitor {
    let response = visitor.sign_in(token, "ada%40example.com", OLD_PASSWORD);
    assert_eq!(response.header("location"), Some("/sign-in/second-factor"), "{response:?}");
    visitor.with_cookie(&response, "adriaticum_second_factor")
}

#[test]
fn a_burst_of_codes_is_counted_before_it_is_checked() {
    let service = start();
    add_app(&Visitor::new(&service).join(&service, "Ada", "admin"));
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    let thieves: Vec<Visitor> =
        (0..22).map(|number| at_second_step(&visitor.forwarded_for(&address(number)), &token)).collect();
    let codes: Vec<usize> = (0..110).collect();
    let answers = all_at_once(&codes, |number| {
        let form = format!("token={token}&code={:06}", 999_999 - number);
        body(thieves[number % thieves.len()].send("POST", "/sign-in/second-factor", &form))
    });
    let checked = answers.iter().filter(|answer| answer.contains("This code is wrong")).count();
    println!("{checked} of {} codes were checked", answers.len());
    assert!((1..=11).contains(&checked), "{checked} codes were checked");
}

#[test]
fn one_right_password_begins_one_session() {
    let service = start();
    let codes = add_app(&Visitor::new(&service).join(&service, "Ada", "admin"));
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    for pair in codes.chunks(2) {
        let person = at_second_step(&visitor, &token);
        let answers = all_at_once(pair, |code| {
            person.send("POST", "/sign-in/second-factor", &format!("token={token}&code={code}"))
        });
        let begun = answers.iter().filter(|answer| answer.header("location") == Some("/")).count();
        assert_eq!(begun, 1, "{answers:?}");
    }
}

/// Fills the queue for password hashing, so that a waiting verification can become outdated.
fn with_busy_hashing(visitor: &Visitor, token: &str, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..40 {
            let (visitor, is_over) = (visitor.forwarded_for(&address(100 + number)), &is_over);
            scope.spawn(move || {
                for guess in 0..6 {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    visitor.sign_in(token, &format!("nobody{number}-{guess}%40example.com"), "a wrong guess");
                }
            });
        }
        work();
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Sets a password with a reset link of the operator.
fn reset(service: &Service, visitor: &Visitor, password: &str) -> impl FnOnce() -> Response + use<> {
    let link = service.run_ok(&["accounts", "reset", "ada@example.com"]);
    let path = format!("/welcome/{}", link.trim().split_once("/welcome/").unwrap().1);
    let (visitor, token) = visitor.clone().with_form(&path);
    let form = format!("token={token}&password={password}&again={password}");
    move || visitor.send("POST", &path, &form)
}

#[test]
fn a_reset_is_not_undone_with_the_earlier_password() {
    let service = start();
    let (thief, thiefs_token) = Visitor::new(&service).join(&service, "Ada", "admin").with_form("/account");
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    let reset = reset(&service, &Visitor::new(&service).forwarded_for(&address(1)), "the+owners+new+words");
    with_busy_hashing(&visitor, &token, || {
        thread::scope(|scope| {
            let old = OLD_PASSWORD.replace(' ', "+");
            let form = format!("token={thiefs_token}&current={old}&password=the+thiefs+words&again=the+thiefs+words");
            scope.spawn(move || thief.send("POST", "/account/password", &form));
            assert_eq!(reset().status, 303);
        });
    });
    let mine = visitor.forwarded_for(&address(2)).sign_in(&token, "ada%40example.com", "the owners new words");
    assert_eq!(mine.status, 303, "the reset holds");
}

#[test]
fn no_session_of_the_old_password_outlives_a_reset() {
    let service = start();
    drop(Visitor::new(&service).join(&service, "Ada", "admin"));
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    let mut password = OLD_PASSWORD.to_owned();
    for race in 0..races() {
        let next = format!("words+of+race+{race}");
        let reset = reset(&service, &Visitor::new(&service), &next);
        let thief = thread::scope(|scope| {
            let thief = scope.spawn(|| visitor.sign_in(&token, "ada%40example.com", &password));
            assert_eq!(reset().status, 303);
            thief.join().unwrap()
        });
        password = next.replace('+', " ");
        if thief.header("location") == Some("/") {
            let thief = visitor.with_cookie(&thief, "adriaticum_session");
            assert_ne!(
                thief.send("GET", "/account", "").status,
                200,
                "race {race}: the old password's session is alive"
            );
        }
    }
}

#[test]
fn own_successes_do_not_clear_delays_that_other_accounts_caused() {
    let service = start();
    drop(Visitor::new(&service).join(&service, "Ada", "developer"));
    let (visitor, token) = Visitor::new(&service).with_form("/sign-in");
    let sign_in = |email: &str, password: &str| {
        let began = Instant::now();
        (visitor.sign_in(&token, email, password).status, began.elapsed())
    };
    for number in 0..6 {
        assert_eq!(sign_in(&format!("nobody{number}%40example.com"), "a wrong guess").0, 401);
    }
    assert_eq!(sign_in("ada%40example.com", PASSWORD).0, 303);
    let (status, took) = sign_in("nobody7%40example.com", "a wrong guess");
    assert!(status == 401 && took >= Duration::from_millis(900), "a guess was answered after {took:?}");
}
