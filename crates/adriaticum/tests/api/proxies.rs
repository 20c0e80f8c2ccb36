//! Proxies: the client address of a request, and the proxies that are trusted to report it.

use std::net::{IpAddr, Ipv4Addr};

use testbed::{Behaviour, FakeRuntime, Request, Service, chat_body};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// The account page of a person who joined from that address; it lists sessions with their addresses.
fn account_page(service: &Service, peer: IpAddr, forwarded_for: &str) -> String {
    Visitor::new(service).from(peer).forwarded_for(forwarded_for).join(service, "Ada", "developer").page("/account")
}

#[test]
fn a_trusted_proxy_reports_the_address_of_the_visitor() {
    let service = ADRIATICUM.service().set("trusted_proxies", "127.0.0.1, 10.0.0.0/8").start();
    let page = account_page(&service, PROXY, "192.0.2.66, 203.0.113.9, 10.1.2.3");
    assert!(page.contains("203.0.113.9"), "{page}");
    assert!(!page.contains("192.0.2.66") && !page.contains("10.1.2.3") && !page.contains("127.0.0.1<"), "{page}");
}

#[test]
fn forwarded_headers_of_others_are_ignored() {
    let service = ADRIATICUM.service().set("trusted_proxies", "127.0.0.1").start();
    let page = account_page(&service, STRANGER, "203.0.113.9");
    assert!(page.contains("127.0.0.2") && !page.contains("203.0.113.9"), "{page}");
    let service = ADRIATICUM.service().start();
    let page = account_page(&service, PROXY, "203.0.113.9");
    assert!(page.contains("127.0.0.1") && !page.contains("203.0.113.9"), "trusted by default: {page}");
}

#[test]
fn a_trusted_proxy_may_hold_every_connection() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let setup =
        ADRIATICUM.service_with(&[&runtime]).set("api.max_connections", "5").set("trusted_proxies", "127.0.0.1");
    let service = setup.start();
    let request = Request::chat(&service.key(), chat_body("hello")).bytes();
    let mut held: Vec<_> = (0..5).map(|_| service.connect()).collect();
    held.iter_mut().for_each(|connection| drop(connection.send(&request).response().completion()));
    service.connect().send(&request).response().expect_error("service_unavailable");
}
