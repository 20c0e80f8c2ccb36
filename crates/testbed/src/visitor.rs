//! A visitor of the console without a browser: cookies and form tokens, but no script.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::{Connection, Installation, Request, Response, Service};

/// The password of every account that a visitor makes.
const PASSWORD: &str = "a few good words";

pub struct Visitor {
    address: SocketAddr,
    origin: String,
    cookies: BTreeMap<String, String>,
}

impl Visitor {
    /// A visitor who is not signed in.
    pub fn anonymous(service: &Service) -> Self {
        let origin = service.banner_value("Console").expect("a console");
        let address = origin.strip_prefix("http://").unwrap().replace("localhost", "127.0.0.1");
        Self { address: address.parse().unwrap(), origin, cookies: BTreeMap::new() }
    }

    /// A new administrator, signed in.
    pub fn administrator(service: &Service, name: &str) -> Self {
        let link = Installation::run_ok(service, &["accounts", "invite", name, "--role", "admin"]);
        let (_, token) = link.trim().split_once("/welcome/").expect("a link");
        let mut visitor = Self::anonymous(service);
        let email = email(name);
        let joined = visitor.submit(
            &format!("/welcome/{token}"),
            &[("name", name), ("email", &email), ("password", PASSWORD), ("again", PASSWORD)],
        );
        assert_eq!(joined.status, 303, "{joined:?}");
        visitor
    }

    /// Signs in to an account that `administrator` has made.
    pub fn sign_in(&mut self, name: &str) -> Response {
        self.try_password(&email(name), PASSWORD)
    }

    pub fn try_password(&mut self, email: &str, password: &str) -> Response {
        self.submit("/sign-in", &[("email", email), ("password", password)])
    }

    pub fn get(&mut self, target: &str) -> Response {
        self.send(self.request("GET", target, ""))
    }

    /// Opens a page with a form and submits it to the same address with these fields.
    pub fn submit(&mut self, target: &str, fields: &[(&str, &str)]) -> Response {
        let page = self.get(target);
        let page = String::from_utf8_lossy(&page.body).into_owned();
        let token = page.split_once("name=\"token\" value=\"").and_then(|(_, rest)| rest.split('"').next());
        let token = token.unwrap_or_else(|| panic!("a form on {target}: {page}"));
        let mut body = format!("token={}", encode(token));
        for (name, value) in fields {
            body.push_str(&format!("&{name}={}", encode(value)));
        }
        let request = self.request("POST", target, &body).header("Origin", &self.origin);
        self.send(request)
    }

    fn request(&self, method: &str, target: &str, body: &str) -> Request {
        let cookies: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Request::chat("", body)
            .without("Authorization")
            .method(method)
            .target(target)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Cookie", &cookies.join("; "))
    }

    fn send(&mut self, request: Request) -> Response {
        let response = Connection::connect(self.address).send(request.bytes()).response();
        for (_, cookie) in response.headers.iter().filter(|(name, _)| name == "set-cookie") {
            let (name, value) = cookie.split(';').next().and_then(|cookie| cookie.split_once('=')).unwrap();
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        response
    }
}

fn email(name: &str) -> String {
    format!("{}@example.com", name.to_lowercase())
}

/// A value as forms send it.
fn encode(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    value.bytes().map(|byte| if plain(&byte) { char::from(byte).into() } else { format!("%{byte:02X}") }).collect()
}
