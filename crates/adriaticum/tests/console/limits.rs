//! Limits and the settings of keys, in the console.

use crate::browser::Page;
use crate::people::Console;

fn public_id(key: &str) -> &str {
    &key["adria_".len()..][..12]
}

/// Fills in the form that sets a limit.
fn set_limit(page: &mut Page, form: &str, kind: &str, amount: &str) {
    page.choose(&format!("{form} [name=kind]"), kind);
    page.fill(&format!("{form} [name=amount]"), amount);
    page.click(&format!("{form} button.primary"));
}

#[test]
fn administrators_set_limits_and_everyone_sees_their_own() {
    let console = Console::start();
    let mut admin = console.person("Ada", "admin");
    let mut developer = console.person("Grace", "developer");
    let of_admin = Console::make_key(&mut admin, "Night shift");
    let of_developer = Console::make_key(&mut developer, "Compiler");

    admin.go("/limits");
    admin.assert_says("No limits");
    admin.eval("document.querySelector('#set form').noValidate = true");
    set_limit(&mut admin, "#set", "requests-per-month", "a lot");
    admin.assert_says("The amount is a whole number");
    set_limit(&mut admin, "#set", "requests-per-month", "1,000");
    admin.assert_says("Limited to 1,000 requests per month.");
    let grace =
        "[...document.querySelectorAll('#set [name=scope] option')].find(o => o.textContent.includes('grace')).value";
    let grace = admin.eval(grace).as_str().unwrap().to_owned();
    admin.choose("#set [name=scope]", &grace);
    set_limit(&mut admin, "#set", "requests-per-day", "2");
    admin.assert_says("Limited to 2 requests per day.");
    admin.go(&format!("/keys/{}", public_id(&of_admin)));
    set_limit(&mut admin, "#limits", "requests-per-minute", "60");
    admin.assert_says("Limited to 60 requests per minute.");

    (0..2).for_each(|_| drop(console.service.chat(&of_developer, "Hello!").completion()));
    let refused = console.service.chat(&of_developer, "Hello!").expect_error("insufficient_permission");
    assert!(refused.starts_with("The key owner's budget of 2 requests per day does not cover"), "{refused}");
    console.service.chat(&of_admin, "Hello!").completion();

    admin.go("/limits");
    for says in ["Everyone", "grace@example.com", "Night shift", "100.0 %", "requests per minute"] {
        admin.assert_says(says);
    }
    developer.go("/limits");
    for says in ["Everyone", "grace@example.com", "100.0 %"] {
        developer.assert_says(says);
    }
    assert!(!developer.text().contains("Night shift") && !developer.text().contains("Remove"), "{}", developer.text());
    let forged = "fetch('/limits', { method: 'POST', body: new URLSearchParams({ token: document.querySelector('[name=token]').value,
        scope: 'everyone', kind: 'requests-per-month', amount: '1000000' }) }).then(answer => answer.status)";
    assert_eq!(developer.eval(forged), 403);

    admin.click("tbody tr:nth-child(1) td.actions button");
    admin.assert_says("was removed.");
    assert_eq!(admin.errors(), Vec::<String>::new());
}

#[test]
fn a_key_is_rotated_changed_and_transferred_on_its_page() {
    let console = Console::start();
    let mut admin = console.person("Ada", "admin");
    let mut developer = console.person("Grace", "developer");
    let old = Console::make_key(&mut admin, "Night shift");
    let path = format!("/keys/{}", public_id(&old));
    admin.go(&path);
    admin.click("#rotate button");
    admin.assert_says("The old one works until");
    let new = admin.eval("document.getElementById('key').textContent").as_str().unwrap().to_owned();
    console.service.chat(&old, "Hello!").completion();
    console.service.chat(&new, "Hello!").completion();
    admin.go(&path);
    assert!(!admin.text().contains(&new), "it is shown once");
    admin.choose("#rotate [name=overlap]", "0");
    admin.click("#rotate button");
    admin.assert_says("The old one is rejected from now on.");
    console.service.chat(&new, "Hello!").expect_error("invalid_api_key");

    developer.go(&path);
    developer.assert_says("Not found");
    admin.go(&path);
    admin.fill("#settings [name=note]", "For the night shift");
    admin.choose("#settings [name=expires]", "2030-01-31");
    let grace = "[...document.querySelectorAll('#settings [name=owner] option')].find(o => o.textContent.includes('grace')).value";
    let grace = admin.eval(grace).as_str().unwrap().to_owned();
    admin.choose("#settings [name=owner]", &grace);
    admin.click("#settings button");
    admin.assert_says("Night shift was saved.");
    admin.assert_says("grace@example.com");
    developer.go(&path);
    developer.assert_says("For the night shift");
    assert_eq!(developer.eval("document.querySelector('#settings [name=expires]').value"), "2030-01-31");
    developer.eval("document.querySelector('#settings [name=completions]').checked = false");
    developer.click("#settings button");
    developer.assert_says("was saved.");
    let audit = "[...document.querySelectorAll('tbody tr')].map(row => row.textContent).join('\\n')";
    admin.go("/audit");
    let audit = admin.eval(audit).as_str().unwrap().to_owned();
    for line in ["rotated key", "to grace@example.com", "forbade completions with key", "to 31 Jan 2030, 23:59:59"] {
        assert!(audit.contains(line), "without {line}: {audit}");
    }
    assert_eq!(admin.errors(), Vec::<String>::new());
    assert_eq!(developer.errors(), Vec::<String>::new());
}

#[test]
fn the_overview_warns_of_keys_that_expire_soon() {
    let console = Console::start();
    let mut admin = console.person("Ada", "admin");
    let mut developer = console.person("Grace", "developer");
    let warning = "An API key expires within a week.";
    console.service.run_ok(&["keys", "create", "for a year", "--expires", "365d"]);
    admin.go("/");
    assert!(!admin.text().contains("expires within"), "{}", admin.text());
    let key = console.service.run_ok(&["keys", "create", "for a demo", "--expires", "3d"]);
    admin.go("/");
    admin.assert_says(warning);
    developer.go("/");
    assert!(!developer.text().contains("expires within"), "another owner's key: {}", developer.text());
    admin.click(".warning a");
    let first = admin.eval("document.querySelector('.key-list tbody tr').textContent");
    assert!(first.as_str().unwrap().contains("for a demo"), "{first}");
    assert_eq!(admin.eval("[...document.querySelectorAll('.badge.soon')].length"), 1);
    admin.go(&format!("/keys/{}", public_id(key.trim())));
    admin.assert_says("expires soon");
    admin.choose("#settings [name=expires]", "2060-01-31");
    admin.click("#settings button");
    admin.go("/");
    assert!(!admin.text().contains("expires within"), "{}", admin.text());
    assert_eq!(admin.errors(), Vec::<String>::new());
}
