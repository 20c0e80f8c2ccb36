//! Attacks of hostile callers and visitors. `begin` starts an attack; it ends when the returned value is dropped.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::{
    Background, Connection, Http2Client, PendingResponse, Request, Service, Visitor, all_at_once, chat_body, wait_for,
};

const FACTUAL: &str = "How many inhabitants does the city of Split in Croatia have?";
/// Slightly less than the limit of a body.
const HALF_BYTES: usize = 250_000;
const HTTP2_STREAMS: usize = 128;

/// The service, and the keys that attackers have.
pub(crate) struct Target<'a> {
    pub(crate) service: &'a Service,
    keys: [String; 2],
}

impl<'a> Target<'a> {
    pub(crate) fn new(service: &'a Service) -> Self {
        Self { service, keys: [service.key(), service.key()] }
    }
}

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) begin: fn(&Target<'_>) -> Box<dyn Any>,
}

pub(crate) const ATTACKS: &[Attack] = &[
    Attack { name: "simultaneous sign-ins", begin: sign_in_simultaneously },
    Attack { name: "half-sent bodies over HTTP/1.1", begin: hold_bodies_over_http1 },
    Attack { name: "half-sent bodies over HTTP/2", begin: hold_bodies_over_http2 },
    Attack { name: "half-sent bodies without a key", begin: hold_bodies_without_a_key },
    Attack { name: "half-sent heads on thousands of connections", begin: hold_heads },
    Attack { name: "unread responses", begin: leave_responses_unread },
    Attack { name: "floods of connections", begin: flood_with_connections },
    Attack { name: "hostile search results", begin: ask_for_hostile_results },
];

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// Forty sign-ins with a wrong password at the same time.
fn sign_in_simultaneously(target: &Target<'_>) -> Box<dyn Any> {
    let tries: Vec<_> = (0..40).collect();
    all_at_once(&tries, |number| {
        Visitor::anonymous(target.service).try_password(&format!("nobody{number}@example.com"), "a guess").status
    });
    Box::new(())
}

fn hold_bodies_over_http1(target: &Target<'_>) -> Box<dyn Any> {
    let held = target.keys.iter().zip([2, 3]).flat_map(|(key, last)| {
        let request = Request::chat(key, vec![b' '; HALF_BYTES]).bytes();
        (0..300).map(move |number| {
            let mut connection = Connection::connect_from(address(last), target.service.address());
            // Half of them send nearly the whole body, half of them only declare it.
            connection.send_while_open(&request[..if number % 2 == 0 { request.len() - 10 } else { 1_000 }]);
            connection
        })
    });
    Box::new(held.collect::<Vec<_>>())
}

fn hold_bodies_over_http2(target: &Target<'_>) -> Box<dyn Any> {
    Box::new(target.keys.iter().map(|key| hold_streams(target, key, 5)).collect::<Vec<_>>())
}

fn hold_bodies_without_a_key(target: &Target<'_>) -> Box<dyn Any> {
    Box::new(hold_streams(target, "nobody", 5))
}

/// Half a body on every stream of `connections` connections; returns once the service has taken or refused all of them.
fn hold_streams(target: &Target<'_>, key: &str, connections: usize) -> Vec<(Http2Client, Vec<PendingResponse>)> {
    let connect = |_| Http2Client::connect_from(address(4), target.service.address());
    let clients: Vec<_> = (0..connections).map(connect).collect();
    let begin = |client: Http2Client| {
        let half = |_| client.send_half(Http2Client::request(key, vec![b' '; HALF_BYTES]));
        let halves = (0..HTTP2_STREAMS).map(half).collect();
        (client, halves)
    };
    let held: Vec<(_, Vec<PendingResponse>)> = clients.into_iter().map(begin).collect();
    wait_for("the half bodies being sent", || {
        held.iter().flat_map(|(_, halves)| halves).all(PendingResponse::is_over).then_some(())
    });
    held
}

/// Heads of nearly the maximum size, without their end.
fn hold_heads(target: &Target<'_>) -> Box<dyn Any> {
    let head = Request::chat("x", "").header("X-Padding", &"x".repeat(30_000)).head();
    let held = (0..1_000).flat_map(|_| [5, 6, 7]).map(|last| {
        let mut connection = Connection::connect_from(address(last), target.service.address());
        connection.send_while_open(&head[..head.len() - 2]);
        connection
    });
    Box::new(held.collect::<Vec<_>>())
}

/// Completions of 30 KB each, on streams that are not read.
fn leave_responses_unread(target: &Target<'_>) -> Box<dyn Any> {
    let messages: Vec<_> = (0..3).map(|_| json!({ "role": "user", "content": "x".repeat(10_000) })).collect();
    let body = json!({ "model": "adriaticum", "messages": messages }).to_string();
    let clients = (0..8).map(|_| Http2Client::connect_without_reading(address(8), target.service.address()));
    let held = clients.map(|client| {
        let request = |_| client.start(Http2Client::request(&target.keys[0], body.clone()));
        let unread: Vec<_> = (0..HTTP2_STREAMS).map(request).collect();
        (client, unread)
    });
    Box::new(held.collect::<Vec<_>>())
}

/// Opens and closes connections from a few addresses.
fn flood_with_connections(target: &Target<'_>) -> Box<dyn Any> {
    let service = target.service.address();
    Box::new(Background::start(move |is_over| {
        let mut held = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            held.extend((0..20).map(|number| Connection::connect_from(address(5 + number % 3), service)));
            if held.len() > 1_000 {
                held.clear();
            }
            thread::sleep(Duration::from_millis(5));
        }
    }))
}

fn ask_for_hostile_results(target: &Target<'_>) -> Box<dyn Any> {
    let (service, request) = (target.service.address(), Request::chat(&target.keys[0], chat_body(FACTUAL)).bytes());
    Box::new(Background::start(move |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            Connection::connect_from(address(2), service).send(&request).response();
        }
    }))
}

/// Pages that are slow to parse as HTML, with a parse error for every tag.
pub(crate) fn hostile_results() -> Vec<Value> {
    let tags = ["<i a=1>", "<table><b>", "<a href=1><p>", "<svg><p><math><select>"];
    let page = |number: usize| tags[number % tags.len()].repeat(19_000 / tags[number % tags.len()].len());
    let result = |number| {
        let content = format!("{}Split has 160,577 inhabitants.", page(number));
        json!({ "title": page(number), "url": format!("https://a.example/{number}"), "content": content })
    };
    (0..20).map(result).collect()
}
