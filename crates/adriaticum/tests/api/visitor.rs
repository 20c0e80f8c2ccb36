//! A visitor of the console, without a browser.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use testbed::{Connection, Request, Response, Service};

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const PASSWORD: &str = "a few good words";

#[derive(Clone)]
pub(crate) struct Visitor {
    console: SocketAddr,
    origin: String,
    peer: IpAddr,
    forwarded_for: String,
    cookie: String,
}

impl Visitor {
    /// A visitor of a console with a separate listener.
    pub(crate) fn new(service: &Service) -> Self {
        let origin = service.banner_value("Console").unwrap();
        let console = format!("127.0.0.1:{}", origin.rsplit_once(':').unwrap().1).parse().unwrap();
        Self::at(console, &origin)
    }

    pub(crate) fn at(console: SocketAddr, origin: &str) -> Self {
        let (forwarded_for, cookie) = (String::new(), String::new());
        Self { console, origin: origin.into(), peer: LOCALHOST, forwarded_for, cookie }
    }

    /// Connects from that address.
    pub(crate) fn from(self, peer: IpAddr) -> Self {
        Self { peer, ..self }
    }

    /// Sends these addresses in a proxy's header.
    pub(crate) fn forwarded_for(&self, addresses: &str) -> Self {
        Self { forwarded_for: addresses.into(), ..self.clone() }
    }

    /// Creates an account with an invitation of the command line, and is signed in.
    pub(crate) fn join(self, service: &Service, name: &str, role: &str) -> Self {
        let link = service.run_ok(&["accounts", "invite", name, "--role", role]);
        let path = format!("/welcome/{}", link.trim().split_once("/welcome/").unwrap().1);
        self.use_invitation(&path, name)
    }

    /// Creates an account with the path of an invitation, and is signed in.
    pub(crate) fn use_invitation(self, path: &str, name: &str) -> Self {
        let (visitor, token) = self.with_form(path);
        let email = format!("{}%40example.com", name.to_lowercase());
        let password = PASSWORD.replace(' ', "+");
        let form = format!("token={token}&name={name}&email={email}&password={password}&again={password}");
        let entered = visitor.send("POST", path, &form);
        Self { cookie: cookie(&entered, "adriaticum_session"), ..visitor }
    }

    /// With the cookie that a page's form needs, and the form's token.
    pub(crate) fn with_form(mut self, path: &str) -> (Self, String) {
        let page = self.send("GET", path, "");
        if page.header("set-cookie").is_some_and(|set| set.starts_with("adriaticum_guest=")) {
            self.cookie = cookie(&page, "adriaticum_guest");
        }
        let page = String::from_utf8(page.body).unwrap();
        let token = page.split_once("name=\"token\" value=\"").unwrap_or_else(|| panic!("no form: {page}")).1;
        let token = token.split('"').next().unwrap().to_owned();
        (self, token)
    }

    /// Adds a cookie that a response sets.
    pub(crate) fn with_cookie(&self, response: &Response, name: &str) -> Self {
        Self { cookie: format!("{}; {}", self.cookie, cookie(response, name)), ..self.clone() }
    }

    pub(crate) fn sign_in(&self, token: &str, email: &str, password: &str) -> Response {
        let password = password.replace(' ', "+");
        self.send("POST", "/sign-in", &format!("token={token}&email={email}&password={password}"))
    }

    pub(crate) fn request(&self, method: &str, target: &str, body: &str) -> Request {
        let host = self.origin.split_once("://").unwrap().1.split(':').next().unwrap();
        Request::chat("", body)
            .without("Authorization")
            .method(method)
            .target(target)
            .header("Host", host)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Origin", &self.origin)
            .header("Cookie", &self.cookie)
            .header("X-Forwarded-For", &self.forwarded_for)
    }

    pub(crate) fn send(&self, method: &str, target: &str, body: &str) -> Response {
        self.answer(&self.request(method, target, body))
    }

    pub(crate) fn answer(&self, request: &Request) -> Response {
        self.connect().send(request.bytes()).response()
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::connect_from(self.peer, self.console)
    }

    /// Signs in as the person who joined under that name.
    pub(crate) fn enter(self, name: &str) -> Self {
        let (visitor, token) = Self { cookie: String::new(), ..self }.with_form("/sign-in");
        let entered = visitor.sign_in(&token, &format!("{}%40example.com", name.to_lowercase()), PASSWORD);
        Self { cookie: cookie(&entered, "adriaticum_session"), ..visitor }
    }

    pub(crate) fn page(&self, target: &str) -> String {
        String::from_utf8(self.send("GET", target, "").body).unwrap()
    }
}

/// A cookie that a response sets, as the client sends it.
fn cookie(response: &Response, name: &str) -> String {
    let set = response.headers.iter().filter(|(header, _)| header == "set-cookie").map(|(_, value)| value);
    let found = set.filter_map(|value| value.split(';').next()).find(|pair| pair.starts_with(name));
    found.unwrap_or_else(|| panic!("{name}: {response:?}")).to_owned()
}
