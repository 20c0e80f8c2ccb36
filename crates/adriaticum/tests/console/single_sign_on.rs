//! Sign-in at a certified identity provider, in a real browser.

use std::net::TcpListener;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use testbed::{Behaviour, Connection, FakeRuntime, Request};

use crate::ADRIATICUM;
use crate::browser::Page;
use crate::people::{Console, PASSWORD};
use crate::provider::Provider;

fn people() -> Value {
    let person = |name: &str, verified: bool, groups: &[&str]| {
        let email = format!("{}@example.com", name.to_lowercase());
        json!({ "name": name, "email": email, "email_verified": verified, "groups": groups })
    };
    json!({
        "ada": person("Ada", true, &["staff", "operations"]),
        "grace": person("Grace", true, &["staff"]),
        "oscar": person("Oscar", false, &["staff"]),
        "eve": person("Eve", true, &["guests"]),
        "mallory": { "name": "Mallory", "email": "owner@example.com", "email_verified": false, "groups": ["staff"] },
        "trent": { "name": "Trent", "email": "owner@example.com", "groups": ["staff"] },
        "owner": { "name": "Olga", "email": "Owner@Example.com", "email_verified": true, "groups": ["staff", "operations"] },
    })
}

/// A console with an identity provider.
fn start(settings: &[(&str, &str)]) -> (Console, Provider) {
    start_with(settings, true)
}

/// The same; `sid`: whether the provider's ID tokens name sessions.
fn start_with(settings: &[(&str, &str)], sid: bool) -> (Console, Provider) {
    let (mut provider, runtime) = (Provider::new(), FakeRuntime::start(Behaviour::Echo));
    let mut service = ADRIATICUM
        .service_with(&[&runtime])
        .set("oidc.issuer", &provider.issuer())
        .set("oidc.client_secret", "a test's client")
        .set("oidc.name", "Example");
    for (name, value) in settings {
        service = service.set(name, value);
    }
    let console = Console::with_service(service.start());
    provider.start(&console.origin(), people(), sid);
    (console, provider)
}

/// Signs in at the provider, in a separate browser.
fn back_from_provider(console: &Console, name: &str) -> Page {
    let mut page = console.browser();
    page.go("/sign-in");
    Provider::sign_in(&mut page, name);
    page
}

/// Members of `staff` may sign in, and those of `operations` are administrators.
const GROUPS: [(&str, &str); 2] = [("oidc.allowed_groups", "staff"), ("oidc.admin_groups", "operations")];

#[test]
fn groups_decide_access_and_role() {
    let (console, _provider) = start(&GROUPS);
    let mut ada = console.browser();
    ada.go("/usage?range=7d");
    assert_eq!(ada.path(), "/sign-in");
    Provider::sign_in(&mut ada, "ada");
    assert_eq!(ada.eval("location.pathname + location.search"), "/usage?range=7d", "{}", ada.text());
    ada.go("/team");
    ada.assert_says("ada@example.com");
    ada.go("/account");
    ada.assert_says("Example");
    assert_eq!(ada.eval("document.querySelector('[name=current]')"), Value::Null, "there is no password to change");

    let mut grace = back_from_provider(&console, "grace");
    assert_eq!(grace.path(), "/");
    grace.go("/team");
    grace.assert_says("Only administrators can do this.");

    let mut eve = back_from_provider(&console, "eve");
    eve.assert_says("Your groups at Example do not give you access.");
    eve.go("/");
    assert_eq!(eve.path(), "/sign-in");

    // These accounts have no password, so none is accepted.
    let mut guess = console.sign_in("Ada");
    guess.assert_says("The e-mail address or the password is incorrect.");
    ada.go("/audit");
    ada.assert_says("joined through");
    assert_eq!(ada.errors(), Vec::<String>::new());
}

#[test]
fn two_tabs_sign_in_and_signing_out_includes_the_provider() {
    let (console, _provider) = start(&GROUPS);
    let mut page = console.browser();
    page.go("/sign-in?next=%2Fkeys");
    page.click("a[href^='/sign-in/provider']");
    // Another tab begins and finishes, then the first one continues.
    let first = page.eval("location.href").as_str().unwrap().to_owned();
    page.go("/sign-in?next=%2Flimits");
    Provider::sign_in(&mut page, "grace");
    assert_eq!(page.path(), "/limits");
    page.eval(&format!("void (location.href = {})", json!(first)));
    page.wait_until(
        "document.readyState == 'complete' && (document.querySelector('[name=login]') || location.pathname == '/keys')",
    );
    if page.path() != "/keys" {
        Provider::log_in(&mut page, "grace");
    }
    assert_eq!(page.path(), "/keys", "{}", page.text());

    // Signing out leads to the provider's sign-out page and back.
    page.press("form[action='/sign-out'] button");
    page.wait_until("document.readyState == 'complete' && document.querySelector('button[name=logout]')");
    page.press("button[name=logout]");
    page.wait_until("document.readyState == 'complete' && location.pathname == '/sign-in'");
    page.go("/keys");
    assert_eq!(page.path(), "/sign-in");
    // The session at the provider has ended, too.
    page.click("a[href^='/sign-in/provider']");
    assert_eq!(page.eval("!!document.querySelector('[name=login]')"), true);
}

#[test]
fn a_back_channel_logout_ends_the_session() {
    let (console, provider) = start(&GROUPS);
    let mut page = back_from_provider(&console, "grace");
    // Another machine has a separate session, also at the provider.
    let mut elsewhere = back_from_provider(&console, "grace");

    page.eval(&format!("void (location.href = '{}/session/end')", provider.issuer()));
    page.wait_until("document.readyState == 'complete' && document.querySelector('button[name=logout]')");
    page.press("button[name=logout]");
    page.wait_until("document.title == 'Sign-out Success'");
    page.go("/");
    assert_eq!(page.path(), "/sign-in", "the provider has notified the console");
    elsewhere.go("/");
    assert_eq!(elsewhere.path(), "/", "her other session continues");

    // Only the provider can end it.
    for token in ["", "a.b.c", "e30.e30.", &unsigned_logout_token()] {
        assert_eq!(send_logout(&console, token).response().status, 400, "{token}");
    }
}

/// Claims of a logout token, issued now.
fn logout(claims: Value) -> Value {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let mut all =
        json!({ "iat": now, "jti": "1", "events": { "http://schemas.openid.net/event/backchannel-logout": {} } });
    all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
    all
}

/// Sends a logout token of the provider; returns the status.
fn log_out(console: &Console, provider: &Provider, claims: Value) -> u16 {
    send_logout(console, &provider.logout_token(&logout(claims))).response().status
}

fn is_signed_in(page: &mut Page) -> bool {
    page.go("/");
    page.path() == "/"
}

#[test]
fn logout_tokens_need_no_exp_and_no_sub() {
    let (console, provider) = start(&GROUPS);
    let mut grace = back_from_provider(&console, "grace");
    for refused in [
        json!({}),
        json!({ "sub": "grace", "nonce": "n" }),
        json!({ "sub": "grace", "events": {} }),
        json!({ "sub": "grace", "aud": "another" }),
        json!({ "sub": "grace", "iss": "http://127.0.0.1:1" }),
        json!({ "sub": "grace", "iat": 1_790_000_000 }),
        json!({ "sub": "grace", "exp": 1_790_000_000 }),
    ] {
        assert_eq!(log_out(&console, &provider, refused.clone()), 400, "{refused}");
    }
    assert_eq!(log_out(&console, &provider, json!({ "sid": "another" })), 200);
    assert!(is_signed_in(&mut grace));
    assert_eq!(log_out(&console, &provider, json!({ "sid": "last" })), 200);
    assert!(!is_signed_in(&mut grace), "by the id of the session alone");
}

#[test]
fn a_session_without_a_provider_id_ends_with_any_session_of_its_person() {
    let (console, provider) = start_with(&GROUPS, false);
    let (mut grace, mut ada) = (back_from_provider(&console, "grace"), back_from_provider(&console, "ada"));
    assert!(is_signed_in(&mut grace) && is_signed_in(&mut ada));
    assert_eq!(log_out(&console, &provider, json!({ "sub": "grace", "sid": "a name" })), 200);
    assert!(!is_signed_in(&mut grace) && is_signed_in(&mut ada));
}

#[test]
fn refused_people_are_in_the_audit_log_and_deleted_ones_return_when_allowed() {
    let (console, _provider) = start(&GROUPS);
    let mut ada = back_from_provider(&console, "ada");
    back_from_provider(&console, "eve").assert_says("do not give you access");
    back_from_provider(&console, "grace");
    console.service.run_ok(&["accounts", "disable", "grace@example.com"]);
    back_from_provider(&console, "grace").assert_says("Your account is disabled.");
    console.service.run_ok(&["accounts", "delete", "grace@example.com"]);
    let mut grace = back_from_provider(&console, "grace");
    grace.assert_says("Your account was deleted.");
    for refusal in ["eve@example.com: no group allows it", "the account is disabled", "the account was deleted"] {
        ada.go_until("/audit", refusal);
    }

    ada.go("/team");
    ada.click("form[action^='/team/deleted/'] button");
    ada.assert_says("grace@example.com can return with a new account.");
    assert_eq!(back_from_provider(&console, "grace").path(), "/");
    console.service.run_ok(&["accounts", "delete", "grace@example.com"]);
    assert!(console.service.run_ok(&["accounts", "deleted"]).contains("grace@example.com"));
    console.service.run_ok(&["accounts", "allow", "grace@example.com"]);
    assert_eq!(back_from_provider(&console, "grace").path(), "/");
}

#[test]
fn people_of_the_provider_confirm_a_change_by_signing_in_there_again() {
    let (console, _provider) = start(&[("oidc.allowed_groups", "staff")]);
    drop(back_from_provider(&console, "grace"));
    drop(back_from_provider(&console, "ada"));
    console.service.run_ok(&["accounts", "role", "ada@example.com", "admin"]);
    let mut ada = back_from_provider(&console, "ada");
    ada.go("/team");
    ada.eval("[...document.querySelectorAll('tbody th a')].find(link => link.textContent == 'Grace').id = 'grace'");
    ada.click("#grace");
    let page = ada.path();
    ada.click("form[action$='/role'] button");
    ada.assert_says("Confirm your identity");
    assert_eq!(ada.eval("document.querySelector('[name=confirm-password]')"), Value::Null);
    Provider::sign_in(&mut ada, "ada"); // prompted again, although the provider has a session
    assert_eq!(ada.path(), page);
    ada.click("form[action$='/role'] button");
    ada.assert_says("Grace is now an admin.");
}

#[test]
fn many_logouts_wait_for_a_provider_that_hangs_and_none_is_refused() {
    let (console, mut provider) = start(&GROUPS);
    provider.stop();
    let hanging = TcpListener::bind(provider.issuer().trim_start_matches("http://")).unwrap();
    let mut waiting: Vec<_> = (0..40).map(|_| send_logout(&console, &unsigned_logout_token())).collect();
    let accepted = hanging.accept().unwrap();
    waiting.drain(..20); // half of them hang up
    drop((hanging, accepted));
    for mut connection in waiting {
        assert_eq!(connection.response().status, 400, "it was verified");
    }
}

/// A logout token with an invalid signature.
fn unsigned_logout_token() -> String {
    let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let claims = json!({
        "iss": "http://127.0.0.1", "sub": "grace", "aud": "console", "iat": 1_790_000_000, "exp": 4_000_000_000_u32,
        "events": { "http://schemas.openid.net/event/backchannel-logout": {} },
    });
    format!("{}.{}.{}", part(json!({ "alg": "RS256" })), part(claims), URL_SAFE_NO_PAD.encode([0; 256]))
}

/// Posts a logout token like the provider, without waiting for the response.
fn send_logout(console: &Console, token: &str) -> Connection {
    let host = console.origin().trim_start_matches("http://").to_owned();
    let request = Request::chat("", format!("logout_token={token}"))
        .target("/sign-in/provider/logout")
        .without("Authorization")
        .header("Host", &host)
        .header("Content-Type", "application/x-www-form-urlencoded");
    let mut connection = Connection::connect(console.service.console_address());
    connection.send(request.bytes());
    connection
}

#[test]
fn an_account_is_taken_over_only_by_a_verified_address() {
    let (console, _provider) = start(&[]);
    let mut owner = console.browser();
    owner.go(&console.setup_link());
    Console::join(&mut owner, "Owner");
    let mut mallory = back_from_provider(&console, "mallory");
    mallory.assert_says("does not say that the address is yours");
    mallory.go("/");
    assert_eq!(mallory.path(), "/sign-in");

    // Nor by an address without a claim of verification, unless such addresses are trusted.
    let mut trent = back_from_provider(&console, "trent");
    trent.assert_says("does not say that the address is yours");

    let mut oscar = back_from_provider(&console, "oscar");
    oscar.assert_says("is not verified");

    // The same person, with a verified address: one account. Roles are given here.
    let mut olga = back_from_provider(&console, "owner");
    olga.go("/team");
    assert_eq!(olga.eval("document.querySelectorAll('tbody tr').length"), 1);
    olga.assert_says("owner@example.com");
    // The address was not verified when the password was chosen.
    let mut by_password = console.sign_in("Owner");
    by_password.assert_says("The e-mail address or the password is incorrect.");
    owner.go("/team");
    assert_eq!(owner.path(), "/sign-in");
    // A new person is a developer, and the administrator can disable them.
    let mut grace = back_from_provider(&console, "grace");
    grace.go("/team");
    grace.assert_says("Only administrators");
    console.service.run_ok(&["accounts", "disable", "grace@example.com"]);
    grace.go("/sign-in");
    grace.click("a[href^='/sign-in/provider']"); // already signed in there
    grace.assert_says("Your account is disabled.");
    let disconnected = console.service.run_ok(&["accounts", "disconnect", "grace@example.com"]);
    assert_eq!(disconnected, "Removed: 1 connection.\n");
    olga.go("/");
    assert_eq!(olga.path(), "/");
    console.service.run_ok(&["accounts", "disconnect", "--everyone"]);
    olga.go("/");
    assert_eq!(olga.path(), "/sign-in");
}

#[test]
fn addresses_without_a_claim_of_verification_can_be_trusted() {
    let (console, _provider) = start(&[("oidc.trust_email", "on")]);
    let mut owner = console.browser();
    owner.go(&console.setup_link());
    Console::join(&mut owner, "Owner");
    let mut page = back_from_provider(&console, "trent");
    assert_eq!(page.path(), "/", "{}", page.text());
    page.go("/team");
    page.assert_says("owner@example.com");
    owner.go("/");
    assert_eq!(owner.path(), "/sign-in");
}

#[test]
fn passwords_can_be_switched_off() {
    let settings = [GROUPS[0], GROUPS[1], ("console.passwords", "off")];
    let (mut console, mut provider) = start(&settings);
    let mut page = console.browser();
    page.go("/sign-in");
    assert_eq!(page.eval("document.querySelector('[name=password]')"), Value::Null);
    Provider::sign_in(&mut page, "ada");
    assert_eq!(page.path(), "/");
    page.go("/team");
    assert_eq!(page.eval("document.getElementById('invite')"), Value::Null);
    // Also for requests that do not come from the page.
    let posted = format!(
        "fetch('/sign-in', {{ method: 'POST', headers: {{ 'content-type': 'application/x-www-form-urlencoded' }},
            body: 'token=' + document.cookie + '&email=ada@example.com&password={PASSWORD}' }}).then(r => r.status)"
    );
    assert_eq!(page.eval(&posted), 403, "without a token");

    // If the provider is down, the console says so and keeps working.
    provider.stop();
    let mut other = console.browser();
    console.service.kill();
    console.service.start_again();
    other.set_origin(&console.origin());
    other.go("/sign-in");
    other.click("a[href^='/sign-in/provider']");
    other.assert_says("Example cannot be reached.");

    let refused = ADRIATICUM.install().run(&["--set", "console.passwords=off", "serve"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("no user could sign in"), "{refused:?}");
}

#[test]
fn sessions_that_began_with_a_password_end_when_passwords_are_switched_off() {
    let (mut console, _provider) = start(&[]);
    let mut owner = console.browser();
    owner.go(&console.setup_link());
    Console::join(&mut owner, "Owner");
    for (passwords, path) in [("on", "/"), ("off", "/sign-in")] {
        console.service.kill();
        console.service.set("console.passwords", passwords);
        console.service.start_again();
        owner.set_origin(&console.origin());
        owner.go("/");
        assert_eq!(owner.path(), path, "passwords are {passwords}");
    }
}
