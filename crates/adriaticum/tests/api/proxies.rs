//! Behind proxies: which address a request is from, and which proxies are trusted to say so.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use testbed::{Behaviour, Connection, FakeRuntime, Request, Response, Service, chat_body};

use crate::ADRIATICUM;

const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A signed-in client of the console, without a browser.
struct Visitor {
    console: SocketAddr,
    origin: String,
    peer: IpAddr,
    forwarded_for: String,
    cookie: String,
}

impl Visitor {
    /// Creates an account, from that address, with that header.
    fn join(service: &Service, peer: IpAddr, forwarded_for: &str) -> Self {
        let origin = service.banner_value("Console").unwrap();
        let console = format!("127.0.0.1:{}", origin.rsplit_once(':').unwrap().1).parse().unwrap();
        let mut visitor = Self { console, origin, peer, forwarded_for: forwarded_for.into(), cookie: String::new() };
        let link = service.run_ok(&["accounts", "invite", "somebody"]);
        let path = format!("/welcome/{}", link.trim().split_once("/welcome/").unwrap().1);
        let page = visitor.send("GET", &path, "");
        visitor.cookie = cookie(&page, "adriaticum_guest");
        let page = String::from_utf8(page.body).unwrap();
        let token = page.split_once("name=\"token\" value=\"").unwrap().1.split('"').next().unwrap();
        let form =
            format!("token={token}&name=Ada&email=ada%40example.com&password=a+few+good+words&again=a+few+good+words");
        let entered = visitor.send("POST", &path, &form);
        visitor.cookie = cookie(&entered, "adriaticum_session");
        visitor
    }

    fn send(&self, method: &str, target: &str, body: &str) -> Response {
        let request = Request::chat("", body)
            .without("Authorization")
            .method(method)
            .target(target)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Origin", &self.origin)
            .header("Cookie", &self.cookie)
            .header("X-Forwarded-For", &self.forwarded_for);
        Connection::connect_from(self.peer, self.console).send(request.bytes()).response()
    }

    /// The account page, which lists sessions with their addresses.
    fn account(&self) -> String {
        String::from_utf8(self.send("GET", "/account", "").body).unwrap()
    }
}

/// A cookie that a response sets, as the client sends it.
fn cookie(response: &Response, name: &str) -> String {
    let set = response.headers.iter().filter(|(header, _)| header == "set-cookie").map(|(_, value)| value);
    let found = set.filter_map(|value| value.split(';').next()).find(|pair| pair.starts_with(name));
    found.unwrap_or_else(|| panic!("{name}: {response:?}")).to_owned()
}

#[test]
fn a_trusted_proxy_says_who_the_visitor_is() {
    let service = ADRIATICUM.service().set("trusted_proxies", "127.0.0.1, 10.0.0.0/8").start();
    let page = Visitor::join(&service, PROXY, "192.0.2.66, 203.0.113.9, 10.1.2.3").account();
    assert!(page.contains("203.0.113.9"), "{page}");
    assert!(!page.contains("192.0.2.66") && !page.contains("10.1.2.3") && !page.contains("127.0.0.1<"), "{page}");
}

#[test]
fn forwarded_headers_of_others_are_ignored() {
    let service = ADRIATICUM.service().set("trusted_proxies", "127.0.0.1").start();
    let page = Visitor::join(&service, STRANGER, "203.0.113.9").account();
    assert!(page.contains("127.0.0.2") && !page.contains("203.0.113.9"), "{page}");
    let service = ADRIATICUM.service().start();
    let page = Visitor::join(&service, PROXY, "203.0.113.9").account();
    assert!(page.contains("127.0.0.1") && !page.contains("203.0.113.9"), "trusted unless told: {page}");
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
