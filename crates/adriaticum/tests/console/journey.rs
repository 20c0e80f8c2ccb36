//! From the first account to the usage of its requests.

use serde_json::Value;

use crate::browser::Page;
use crate::people::{Console, PASSWORD};

#[test]
fn the_first_person_sets_up_creates_a_key_and_sees_its_requests() {
    let console = Console::start();
    let mut page = console.browser();
    page.go("/");
    assert_eq!(page.path(), "/sign-in");
    let link = console.setup_link();
    page.go(&link);
    page.fill("[name=name]", "Ada");
    page.fill("[name=email]", "ada@example.com");
    page.fill("[name=password]", "short");
    page.fill("[name=again]", "short");
    page.eval("document.querySelector('main form').noValidate = true");
    page.click("main button[type=submit]");
    page.assert_says("at least 10 characters");
    assert_eq!(page.eval("document.querySelector('[name=email]').value"), "ada@example.com", "what was typed is kept");
    Console::join(&mut page, "Ada");
    assert_eq!(page.path(), "/");
    page.assert_says("Start with an API key");

    let key = Console::make_key(&mut page, "My first");
    assert!(page.eval("document.getElementById('try').textContent").as_str().unwrap().contains(&key));
    let ids: Vec<String> = (0..3).map(|_| console.service.chat(&key, "Hello!").completion().id).collect();
    console.service.chat(&key, &"x".repeat(10_001)).expect_error("invalid_request");

    page.go("/keys");
    page.assert_says("My first");
    assert!(!page.text().contains(&key), "a key is shown once");
    page.click("tbody th a");
    page.fill("#rename [name=name]", "Renamed <b>");
    page.click("#rename button[type=submit]");
    page.assert_says("Renamed My first to Renamed <b>.");

    page.go("/requests");
    let shown = page.eval("[...document.querySelectorAll('tbody th code')].map(id => id.textContent)");
    assert_eq!(shown.as_array().unwrap().len(), 4);
    assert!(ids.iter().all(|id| shown.as_array().unwrap().contains(&Value::from(id.as_str()))));
    let filtered = |page: &mut Page, query: &str| {
        page.go(&format!("/requests?{query}"));
        page.eval("document.querySelectorAll('tbody tr').length")
    };
    let public = &key["adria_".len()..][..12];
    assert_eq!(filtered(&mut page, "status=400"), 1);
    assert_eq!(filtered(&mut page, &format!("status=200&key={public}")), 3);
    assert_eq!(filtered(&mut page, &format!("id={}", ids[1])), 1);
    assert_eq!(filtered(&mut page, "id=nonsense"), 0);
    let csv = page.eval("fetch('/requests.csv?status=200').then(answer => answer.text())");
    let csv = csv.as_str().unwrap();
    assert!(csv.lines().count() == 4 && ids.iter().all(|id| csv.contains(id)), "{csv}");
    page.go_until(&format!("/requests/{}", ids[0]), "Persisted"); // the duration is known a little later
    assert_usage_is_that_of_the_command_line(&console, &mut page);

    page.go("/keys");
    page.click("td a[href$='/revoke']");
    page.assert_says("Revoke Renamed <b>?");
    let last = console.service.rows()[0]["request_id"].clone();
    page.assert_says(last.as_str().unwrap());
    page.click("main form button.danger");
    page.assert_says("Renamed <b> was revoked.");
    console.service.chat(&key, "Hello?").expect_error("invalid_api_key");
    assert_eq!(page.errors(), Vec::<String>::new());

    let mut again = console.browser();
    again.go(&link);
    again.assert_says("This link is no longer valid");
}

/// Every figure on the page and in the export equals that of `adriaticum usage`.
fn assert_usage_is_that_of_the_command_line(console: &Console, page: &mut Page) {
    let sums: Value = serde_json::from_str(&console.service.run_ok(&["usage", "--since", "24h", "--json"])).unwrap();
    page.go("/usage?range=24h&group=outcome");
    let cells =
        page.eval("[...document.querySelectorAll('main tfoot td')].map(cell => cell.innerText.split(/[\\s ]/)[0])");
    let figures =
        [&sums["requests"], &Value::from(1), &sums["prompt_tokens"], &sums["completion_tokens"], &sums["total_tokens"]];
    let expected: Vec<Value> = figures.iter().map(|figure| figure.to_string().into()).collect();
    assert_eq!(cells, Value::from(expected), "{sums}");
    page.assert_says("3 of 4 measured");

    let csv = page.eval("fetch('/usage.csv?range=24h&group=outcome').then(answer => answer.text())");
    let lines: Vec<&str> = csv.as_str().unwrap().lines().collect();
    assert!(lines[0].starts_with("outcome,name,requests,failed,prompt_tokens"), "{lines:?}");
    let all =
        format!("all,,4,1,{},3,{},3,{},3", sums["prompt_tokens"], sums["completion_tokens"], sums["total_tokens"]);
    assert_eq!(lines.last(), Some(&all.as_str()));
    assert_eq!(lines.len(), 2 + sums["by_outcome"].as_array().unwrap().len());
}

#[test]
fn a_member_is_invited_gets_a_role_and_is_disabled() {
    let console = Console::start();
    let mut admin = console.person("Ada", "admin");
    admin.go("/team");
    admin.fill("#invite [name=note]", "Bob");
    admin.click("#invite button[type=submit]");
    let link = admin.eval("document.getElementById('link').textContent");
    let link = link.as_str().unwrap().strip_prefix(&console.origin()).unwrap().to_owned();
    let mut bob = console.browser();
    bob.go(&link);
    bob.assert_says("ada@example.com invited you as developer");
    Console::join(&mut bob, "Bob");
    bob.go("/team");
    bob.assert_says("Only administrators can do this");
    assert_eq!(bob.eval("[...document.querySelectorAll('.top nav a')].some(a => a.pathname == '/team')"), false);

    admin.go("/team");
    admin.click("tbody tr:nth-child(1) th a");
    admin.assert_says("Your account");
    assert_eq!(admin.eval("document.querySelector(\"[action$='/role']\")"), serde_json::Value::Null, "not for oneself");
    admin.go("/team");
    admin.click("tbody tr:nth-child(2) th a");
    admin.click("[action$='/role'] button");
    admin.assert_says("Bob is now an admin.");
    bob.go("/team");
    assert_eq!(bob.path(), "/sign-in", "sessions end with another role");
    let mut bob = console.sign_in("Bob");
    bob.go("/team");
    bob.assert_says("Invite a team member");
    let mut links = Vec::new();
    for note in ["Bob's second self", "Bob's third self"] {
        bob.fill("#invite [name=note]", note);
        bob.click("#invite button[type=submit]");
        let link = bob.eval("document.getElementById('link').textContent");
        links.push(link.as_str().unwrap().strip_prefix(&console.origin()).unwrap().to_owned());
        bob.go("/team");
    }
    admin.go("/team");
    admin.assert_says("Bob's second self");
    admin.assert_says("invitation as developer");
    admin.click("[action$='/withdraw'] button");
    admin.assert_says("The link was revoked.");
    admin.click("tbody tr:nth-child(2) th a");
    admin.click("[action$='/disable'] button");
    admin.assert_says("Bob can no longer sign in. 1 pending link was revoked.");
    for link in links {
        let mut friend = console.browser();
        friend.go(&link);
        friend.assert_says("This link is no longer valid");
    }
    bob.go("/keys");
    assert_eq!(bob.path(), "/sign-in");
    let mut bob = console.sign_in("Bob");
    bob.assert_says("The e-mail address or the password is incorrect.");
    admin.go("/audit");
    admin.assert_says("disabled the account of bob@example.com");
    admin.assert_says("withdrew the link for Bob's third self");
    assert_eq!(admin.errors(), Vec::<String>::new());
}

#[test]
fn a_password_is_changed_and_other_sessions_end() {
    let console = Console::start();
    let mut page = console.person("Ada", "developer");
    let mut elsewhere = console.sign_in("Ada");
    assert_eq!(elsewhere.path(), "/");
    page.go("/account");
    assert_eq!(page.eval("document.querySelectorAll('tbody tr').length"), 2);
    page.click("[action$='/end'] button");
    page.assert_says("The session was signed out.");
    elsewhere.go("/keys");
    assert_eq!(elsewhere.path(), "/sign-in");

    let mut elsewhere = console.sign_in("Ada");
    let another = "quite another one";
    let fill = |page: &mut Page, current: &str| {
        page.go("/account");
        page.fill("[name=current]", current);
        page.fill("[name=password]", another);
        page.fill("[name=again]", another);
        page.click("[action='/account/password'] button");
    };
    fill(&mut page, "not the password");
    page.assert_says("The current password is incorrect.");
    fill(&mut page, PASSWORD);
    page.assert_says("The password was changed");
    elsewhere.go("/account");
    assert_eq!(elsewhere.path(), "/sign-in");

    let link = console.service.run_ok(&["accounts", "reset", "ada@example.com"]);
    page.go(&link.trim()[link.find("/welcome/").unwrap()..]);
    page.fill("[name=password]", PASSWORD);
    page.fill("[name=again]", PASSWORD);
    page.click("main button[type=submit]");
    page.assert_says("You are signed in.");
    page.click("[action='/sign-out'] button");
    page.assert_says("You are signed out.");
}

#[test]
fn pages_work_without_script() {
    let console = Console::start();
    let mut page = console.person("Ada", "developer");
    let mut plain = console.sign_in("Ada");
    plain.disable_scripts();
    let key = Console::make_key(&mut page, "Plain");
    console.service.chat(&key, "Hello!");
    for (path, says) in
        [("/keys", "Plain"), ("/usage", "All times are UTC."), ("/requests", "chatcmpl_"), ("/account", "Ada")]
    {
        plain.go(path);
        plain.assert_says(says);
    }
}

#[test]
fn a_session_and_its_forms_work_on_every_replica() {
    let console = Console::start();
    let other = console.replica();
    let mut page = console.person("Ada", "developer");
    let key = Console::make_key(&mut page, "Mine");
    other.service.chat(&key, "Hello!").completion();
    page.set_origin(&other.origin());
    page.go("/requests");
    page.assert_says("chatcmpl_");
    Console::make_key(&mut page, "Another");
    page.set_origin(&console.origin());
    page.go("/keys");
    page.assert_says("Another");
    page.click("[action='/sign-out'] button");
    page.set_origin(&other.origin());
    page.go("/keys");
    assert_eq!(page.path(), "/sign-in");
}

#[test]
fn an_export_holds_everything_that_the_filter_matches() {
    const REQUESTS: usize = 1_100; // more than one batch
    let console = Console::start();
    let mut page = console.person("Ada", "developer");
    let (key, other) = (Console::make_key(&mut page, "Many"), Console::make_key(&mut page, "x".repeat(100).as_str()));
    let connections: Vec<_> = (0..4).collect();
    std::thread::scope(|scope| {
        for _ in &connections {
            scope.spawn(|| (0..REQUESTS / 4).for_each(|_| drop(console.service.chat(&key, "Hello!").completion())));
        }
    });
    console.service.chat(&other, "Hello!").completion();
    let lines = |page: &mut Page, query: &str| {
        let csv = page.eval(&format!("fetch('/requests.csv{query}').then(answer => answer.text())"));
        let lines: Vec<String> = csv.as_str().unwrap().lines().map(str::to_owned).collect();
        let ids: std::collections::HashSet<_> = lines.iter().skip(1).map(|line| line[..41].to_owned()).collect();
        assert_eq!(ids.len(), lines.len() - 1, "each request once, and nothing else");
        ids.len()
    };
    let public = &key["adria_".len()..][..12];
    assert_eq!(lines(&mut page, ""), REQUESTS + 1);
    assert_eq!(lines(&mut page, &format!("?key={public}")), REQUESTS);
    assert_eq!(lines(&mut page, "?status=502"), 0);
    page.go("/requests");
    page.click("nav.pages a");
    let export = page.eval("[...document.querySelectorAll('a')].find(a => a.textContent == 'Export CSV').search");
    assert_eq!(lines(&mut page, export.as_str().unwrap()), REQUESTS + 1, "from a later page, too");
}
