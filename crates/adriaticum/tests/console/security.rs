//! What must not work: forged forms, stolen ids, guessed passwords, keys where cookies belong and cookies where keys do.

use std::time::Instant;

use testbed::{Answer, Connection, Request, ask};

use crate::browser::Page;
use crate::people::Site;

/// A plain client of the console, without a browser's good manners.
struct Client {
    site: Site,
    cookie: String,
}

impl Client {
    /// Has the cookie of somebody who is signed in.
    fn of(site: Site, page: &mut Page) -> Self {
        let cookie = format!("adriaticum_session={}", page.cookie("adriaticum_session"));
        Self { site, cookie }
    }

    fn send(&self, request: Request) -> Answer {
        let address = self.site.origin().strip_prefix("http://").unwrap().replace("localhost", "127.0.0.1");
        Connection::to(address.parse().unwrap()).send(request.bytes()).answer()
    }

    fn request(&self, method: &str, target: &str, body: &str) -> Request {
        Request::chat("", body)
            .without("Authorization")
            .method(method)
            .target(target)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Cookie", &self.cookie)
    }

    fn get(&self, target: &str) -> Answer {
        self.send(self.request("GET", target, ""))
    }
}

/// The token of the forms on a page.
fn form_token(page: &mut Page) -> String {
    page.eval("document.querySelector('[name=token]').value").as_str().unwrap().to_owned()
}

#[test]
fn a_form_without_its_token_or_from_elsewhere_changes_nothing() {
    let site = Site::start();
    let mut page = site.person("Ada", "developer");
    page.go("/keys");
    let token = form_token(&mut page);
    let mut other = site.person("Bob", "developer");
    other.go("/keys");
    let others_token = form_token(&mut other);
    let client = Client::of(site, &mut page);
    let origin = client.site.origin();
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
        let answer = client.send(request.clone());
        assert!([403, 404].contains(&answer.status), "{request:?}: {answer:?}");
    }
    assert!(client.send(post(&token).without("Cookie")).status == 401, "no session, no change");
    let keys = client.site.service.output(&["keys", "list", "--json"]);
    assert_eq!(keys.trim(), "[]");
    assert_eq!(client.send(post(&token).header("Origin", &origin)).status, 200);
}

#[test]
fn another_accounts_ids_are_not_there() {
    let site = Site::start();
    let mut ada = site.person("Ada", "developer");
    let key = Site::make_key(&mut ada, "Ada's own");
    let public = &key["adria_".len()..][..12];
    let id = site.service.ask(&key, "Hello!").completed().id;
    ada.go("/account");
    let mut bob = site.person("Bob", "developer");
    bob.go("/keys");
    let token = form_token(&mut bob);
    let client = Client::of(site, &mut bob);
    let origin = client.site.origin();
    for target in [
        format!("/keys/{public}"),
        format!("/keys/{public}/revoke"),
        format!("/usage?key={public}"),
        format!("/usage.csv?key={public}"),
        format!("/requests/{id}"),
    ] {
        let answer = client.get(&target);
        assert_eq!(answer.status, 404, "{target}");
        assert!(!String::from_utf8_lossy(&answer.body).contains("Ada"), "{target}");
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
    client.site.service.ask(&key, "Still mine").completed();
}

#[test]
fn a_key_does_not_open_the_console_nor_a_cookie_the_api() {
    let site = Site::start();
    let mut page = site.person("Ada", "admin");
    let key = Site::make_key(&mut page, "K");
    let client = Client::of(site, &mut page);
    let with_key =
        client.request("GET", "/keys", "").without("Cookie").header("Authorization", &format!("Bearer {key}"));
    let answer = client.send(with_key);
    assert_eq!((answer.status, answer.header("location")), (303, Some("/sign-in?next=%2Fkeys")));
    let with_cookie = Request::chat("", ask("Hello!")).without("Authorization").header("Cookie", &client.cookie);
    client.site.service.send(&with_cookie).refused_as("invalid_api_key");
    let token = client.cookie.split_once('=').unwrap().1;
    client.site.service.send(&Request::chat(token, ask("Hello!"))).refused_as("invalid_api_key");
}

#[test]
fn every_answer_carries_the_policy_and_cookies_are_kept_from_scripts() {
    let site = Site::start();
    let mut page = site.person("Ada", "admin");
    assert_eq!(page.eval("document.cookie"), "", "no script sees a cookie");
    let client = Client::of(site, &mut page);
    for target in ["/", "/sign-in", "/keys", "/nothing", "/usage.csv"] {
        let answer = client.get(target);
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{target}");
        assert!(!policy.contains("unsafe"), "{target}: {policy}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{target}");
    }
    let guest = client.send(client.request("GET", "/sign-in", "").without("Cookie"));
    let cookie = guest.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && cookie.contains("Path=/"), "{cookie}");
}

#[test]
fn guessing_gets_slow_tells_nothing_and_locks_nobody_out() {
    let site = Site::start();
    drop(site.person("Ada", "developer"));
    let mut page = site.browser();
    page.go("/sign-in");
    let mut texts = Vec::new();
    for email in ["ada@example.com", "nobody@example.com"] {
        page.fill("[name=email]", email);
        page.fill("[name=password]", "not the password");
        page.click("main button[type=submit]");
        texts.push(page.eval("document.querySelector('.complaint').textContent"));
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
    let mut ada = site.sign_in("Ada");
    assert_eq!(ada.path(), "/", "whoever knows the password gets in");
}

#[test]
fn the_api_is_not_served_here_signed_in_or_not() {
    let site = Site::start();
    let mut page = site.person("Ada", "admin");
    let key = Site::make_key(&mut page, "K");
    let client = Client::of(site, &mut page);
    for method in ["POST", "GET", "OPTIONS", "DELETE"] {
        let chat = Request::chat(&key, ask("Hello!")).method(method);
        for request in [chat.clone(), chat.header("Cookie", &client.cookie)] {
            client.send(request).refused_as("not_found");
        }
    }
}
