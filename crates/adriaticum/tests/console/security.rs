//! Attacks that must fail: forged forms, stolen ids, guessed passwords, keys in place of cookies and cookies in place of
//! keys.

use std::time::Instant;

use testbed::{Connection, Request, Response, chat_body};

use crate::browser::Page;
use crate::people::Console;

/// An HTTP client of the console, without a browser's checks.
struct Client {
    console: Console,
    cookie: String,
}

impl Client {
    /// With the session cookie of a page.
    fn with_session_of(console: Console, page: &mut Page) -> Self {
        let cookie = format!("adriaticum_session={}", page.cookie("adriaticum_session"));
        Self { console, cookie }
    }

    fn send(&self, request: Request) -> Response {
        let address = self.console.origin().strip_prefix("http://").unwrap().replace("localhost", "127.0.0.1");
        Connection::connect(address.parse().unwrap()).send(request.bytes()).response()
    }

    fn request(&self, method: &str, target: &str, body: &str) -> Request {
        Request::chat("", body)
            .without("Authorization")
            .method(method)
            .target(target)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Cookie", &self.cookie)
    }

    fn get(&self, target: &str) -> Response {
        self.send(self.request("GET", target, ""))
    }
}

/// The token of the forms on a page.
fn form_token(page: &mut Page) -> String {
    page.eval("document.querySelector('[name=token]').value").as_str().unwrap().to_owned()
}

#[test]
fn a_form_without_its_token_or_from_elsewhere_changes_nothing() {
    let console = Console::start();
    let mut page = console.person("Ada", "developer");
    page.go("/keys");
    let token = form_token(&mut page);
    let mut other = console.person("Bob", "developer");
    other.go("/keys");
    let others_token = form_token(&mut other);
    let client = Client::with_session_of(console, &mut page);
    let origin = client.console.origin();
    let post = |token: &str| client.request("POST", "/keys", &format!("name=stolen&completions=yes&token={token}"));
    let forged = [
        client.request("POST", "/keys", "name=stolen"),
        post("").header("Origin", &origin),
        post(&others_token).header("Origin", &origin),
        post(&token).header("Origin", "https://evil.example"),
        post(&token).header("Origin", "null"),
        post(&token).header("Sec-Fetch-Site", "cross-site"),
        post(&token).header("Origin", &origin).header("Host", "evil.example"),
    ];
    for request in forged {
        let response = client.send(request.clone());
        assert!([403, 404].contains(&response.status), "{request:?}: {response:?}");
    }
    let signed_out = client.send(post(&token).without("Cookie"));
    assert_eq!((signed_out.status, signed_out.header("location")), (303, Some("/sign-in")), "no session, no change");
    let keys = client.console.service.run_ok(&["keys", "list", "--json"]);
    assert_eq!(keys.trim(), "[]");
    assert_eq!(client.send(post(&token).header("Origin", &origin)).status, 200);
}

#[test]
fn another_accounts_ids_are_not_found() {
    let console = Console::start();
    let mut ada = console.person("Ada", "developer");
    let key = Console::make_key(&mut ada, "Ada's own");
    let public = &key["adria_".len()..][..12];
    let id = console.service.chat(&key, "Hello!").completion().id;
    ada.go("/account");
    let mut bob = console.person("Bob", "developer");
    bob.go("/keys");
    let token = form_token(&mut bob);
    let client = Client::with_session_of(console, &mut bob);
    let origin = client.console.origin();
    for target in [
        format!("/keys/{public}"),
        format!("/keys/{public}/revoke"),
        format!("/usage?key={public}"),
        format!("/usage.csv?key={public}"),
        format!("/requests/{id}"),
    ] {
        let response = client.get(&target);
        assert_eq!(response.status, 404, "{target}");
        assert!(!String::from_utf8_lossy(&response.body).contains("Ada"), "{target}");
    }
    for target in [
        "/requests".to_owned(),
        format!("/requests?key={public}"),
        format!("/requests?id={id}"),
        format!("/requests.csv?key={public}"),
    ] {
        let body = client.get(&target).body;
        let body = String::from_utf8_lossy(&body);
        assert!(!body.contains(&format!("/requests/{id}")) && !body.contains(&format!("\n{id}")), "{target}: {body}");
    }
    for (target, body) in [
        (format!("/keys/{public}/rename"), "name=mine"),
        (format!("/keys/{public}/revoke"), ""),
        ("/team/invitations".to_owned(), "note=x&role=admin&life=7"),
    ] {
        let request = client.request("POST", &target, &format!("{body}&token={token}")).header("Origin", &origin);
        assert!([403, 404].contains(&client.send(request).status), "{target}");
    }
    client.console.service.chat(&key, "Still mine").completion();
}

#[test]
fn the_console_refuses_keys_and_the_api_refuses_cookies() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    let key = Console::make_key(&mut page, "K");
    let client = Client::with_session_of(console, &mut page);
    let with_key =
        client.request("GET", "/keys", "").without("Cookie").header("Authorization", &format!("Bearer {key}"));
    let response = client.send(with_key);
    assert_eq!((response.status, response.header("location")), (303, Some("/sign-in?next=%2Fkeys")));
    let with_cookie = Request::chat("", chat_body("Hello!")).without("Authorization").header("Cookie", &client.cookie);
    client.console.service.send(&with_cookie).expect_error("invalid_api_key");
    let token = client.cookie.split_once('=').unwrap().1;
    client.console.service.send(&Request::chat(token, chat_body("Hello!"))).expect_error("invalid_api_key");
}

#[test]
fn every_response_carries_the_policy_and_cookies_are_kept_from_scripts() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    assert_eq!(page.eval("document.cookie"), "", "scripts cannot read cookies");
    let client = Client::with_session_of(console, &mut page);
    for target in ["/", "/sign-in", "/keys", "/nothing", "/usage.csv"] {
        let response = client.get(target);
        let policy = response.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{target}");
        assert!(!policy.contains("unsafe"), "{target}: {policy}");
        assert_eq!(response.header("cache-control"), Some("no-store"), "{target}");
    }
    let guest = client.send(client.request("GET", "/sign-in", "").without("Cookie"));
    let cookie = guest.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && cookie.contains("Path=/"), "{cookie}");
}

#[test]
fn password_guessing_is_throttled_reveals_nothing_and_locks_no_account() {
    let console = Console::start();
    drop(console.person("Ada", "developer"));
    let mut page = console.browser();
    page.go("/sign-in");
    let mut texts = Vec::new();
    for email in ["ada@example.com", "nobody@example.com"] {
        page.fill("[name=email]", email);
        page.fill("[name=password]", "not the password");
        page.click("main button[type=submit]");
        texts.push(page.eval("document.querySelector('.error').textContent"));
    }
    assert_eq!(texts[0], texts[1]);
    let mut last = std::time::Duration::ZERO;
    for _ in 0..6 {
        let began = Instant::now();
        page.fill("[name=email]", "ada@example.com");
        page.fill("[name=password]", "not the password");
        page.click("main button[type=submit]");
        last = began.elapsed();
    }
    assert!(last.as_millis() >= 500, "{last:?}");
    let mut ada = console.sign_in("Ada");
    assert_eq!(ada.path(), "/", "the correct password signs in");
}

#[test]
fn the_api_is_not_served_on_the_console() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    let key = Console::make_key(&mut page, "K");
    let client = Client::with_session_of(console, &mut page);
    for method in ["POST", "GET", "OPTIONS", "DELETE"] {
        let chat = Request::chat(&key, chat_body("Hello!")).method(method);
        for request in [chat.clone(), chat.header("Cookie", &client.cookie)] {
            client.send(request).expect_error("not_found");
        }
    }
}
