//! Slots, memory and queue are shared by person, then by key: more keys give no larger part.

use testbed::{Behaviour, Connection, FakeRuntime, Request, Service, chat_body, wait_for};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

const KEYS: usize = 10;
const PER_KEY: usize = 12;

/// Keys of one person.
fn keys_of_one_person(service: &Service) -> Vec<String> {
    let (ada, token) = Visitor::new(service).join(service, "Ada", "developer").with_form("/keys");
    let create = |number| {
        let page = ada.send("POST", "/keys", &format!("token={token}&name=K{number}&completions=yes")).body;
        let page = String::from_utf8(page).unwrap();
        let at = page.find("adria_").unwrap_or_else(|| panic!("no key: {page}"));
        page[at..]
            .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
            .next()
            .unwrap()
            .into()
    };
    (0..KEYS).map(create).collect()
}

/// Sends more requests from every key than it may have; returns when each request is held or refused.
fn send_all(
    service: &Service,
    keys: &[String],
    request: impl Fn(&str) -> Vec<u8>,
    held: impl Fn() -> usize,
) -> Vec<Connection> {
    let mut sent = Vec::new();
    for key in keys {
        for _ in 0..PER_KEY {
            let mut connection = service.connect();
            connection.send(request(key));
            sent.push(connection);
        }
    }
    wait_for("all being held or refused", || {
        let refused = sent.iter().filter(|connection| connection.has_news()).count();
        (refused + held() == sent.len()).then_some(())
    });
    sent
}

#[test]
fn a_person_with_ten_keys_leaves_slots_for_others() {
    let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_requests", "20").start();
    let (keys, other) = (keys_of_one_person(&service), service.key());
    let request = |key: &str| Request::chat(key, chat_body("hello")).bytes();
    // A greedy key leaves some to the person's other keys.
    let greedy = send_all(&service, &[keys[0].clone(), keys[0].clone()], request, || runtime.requests().len());
    assert_eq!(runtime.requests().len(), 13, "four fifths of four fifths");
    let others = send_all(&service, &keys[1..], request, || runtime.requests().len() - 13);
    assert_eq!(runtime.requests().len(), 16, "four fifths");
    let mut patient = service.connect();
    patient.send(request(&other));
    wait_for("an answer or the runtime", || (patient.has_news() || runtime.requests().len() == 17).then_some(()));
    runtime.release();
    patient.response().completion();
    drop((greedy, others));
}

#[test]
fn a_person_with_ten_keys_leaves_memory_for_others() {
    const BODY_BYTES: usize = 100_000;
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_body_memory", "1MiB").start();
    let (keys, other) = (keys_of_one_person(&service), service.key());
    let held = || service.metric("adriaticum_body_memory_bytes").unwrap() as usize / BODY_BYTES;
    let half = |key: &str| Request::chat(key, vec![b' '; BODY_BYTES]).head();
    let _waiting = send_all(&service, &keys, half, held);
    let mut padded = chat_body("hello").into_bytes();
    padded.resize(BODY_BYTES, b' ');
    service.send(&Request::chat(&other, padded)).completion();
}

#[test]
fn a_runtime_sees_which_keys_belong_together_and_no_name() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (keys, alone) = (keys_of_one_person(&service), service.key());
    for key in [&keys[0], &keys[1], &alone] {
        service.chat(key, "hello").completion();
    }
    let value = |head: &String, name: &str| {
        let line = head.lines().find_map(|line| line.to_ascii_lowercase().starts_with(name).then(|| line.to_owned()));
        line.map(|line| line.split_once(": ").unwrap().1.trim().to_owned())
    };
    let heads = runtime.heads();
    let heads: Vec<_> = heads.iter().filter(|head| head.starts_with("POST")).collect();
    let [first, second, lone] = heads[..] else { panic!("{heads:?}") };
    let person = value(first, "x-adriaticum-person").unwrap();
    assert!(person.len() == 12 && person.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{person}");
    assert_eq!(value(second, "x-adriaticum-person"), Some(person));
    assert_eq!(value(lone, "x-adriaticum-person"), None);
    for (head, key) in [(first, &keys[0]), (second, &keys[1]), (lone, &alone)] {
        assert_eq!(value(head, "x-adriaticum-key").as_deref(), Some(&key[6..18]));
        // Ids are random, and may hold any letters.
        let named = head.lines().filter(|line| !line.starts_with("x-request-id") && !line.starts_with("x-adriaticum-"));
        assert!(!named.collect::<String>().to_ascii_lowercase().contains("ada"), "{head}");
    }
}
