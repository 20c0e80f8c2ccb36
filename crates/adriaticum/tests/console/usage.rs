//! Usage, prices, filters and exports in the browser.

use crate::browser::Page;
use crate::people::Console;

fn count(page: &mut Page, selector: &str) -> u64 {
    page.eval(&format!("document.querySelectorAll('{selector}').length")).as_u64().unwrap()
}

/// The download behind a link on the page.
fn download(page: &mut Page, label: &str) -> String {
    let fetched = page.eval(&format!(
        "fetch([...document.querySelectorAll('.heading a')].find(a => a.textContent == '{label}').href).then(it => it.text())"
    ));
    fetched.as_str().unwrap().to_owned()
}

/// The texts of the first column of the breakdown.
fn groups(page: &mut Page) -> Vec<String> {
    let names = page.eval("[...document.querySelectorAll('#breakdown tbody th')].map(name => name.innerText)");
    names.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn usage_is_grouped_by_person_and_project_and_shown_as_cost() {
    let console = Console::start();
    let mut admin = console.person("Ada", "admin");
    let mut developer = console.person("Grace", "developer");
    let of_admin = Console::make_key(&mut admin, "Night shift");
    developer.go("/keys");
    developer.fill("#create [name=project]", "compiler");
    let of_developer = {
        developer.fill("#create [name=name]", "Nightly");
        developer.click("#create button[type=submit]");
        developer.eval("document.getElementById('key').textContent").as_str().unwrap().to_owned()
    };
    developer.go("/keys");
    developer.assert_says("compiler");
    (0..3).for_each(|_| drop(console.service.chat(&of_admin, "Hello!").completion()));
    (0..2).for_each(|_| drop(console.service.chat(&of_developer, "Hello!").completion()));

    admin.go("/usage?range=24h&group=person");
    assert_eq!(groups(&mut admin).len(), 2);
    admin.assert_says("grace@example.com");
    admin.assert_says("no requests in the previous 24 hours");
    assert!(!admin.text().contains("Cost"), "no costs without prices");
    admin.click("#breakdown tbody tr:nth-child(2) th a");
    assert_eq!(count(&mut admin, ".chip"), 1);
    admin.assert_says("grace@example.com");
    assert_eq!(admin.eval("document.querySelector('.totals .figure').innerText"), "2");
    admin.go("/usage?range=24h&group=project");
    assert_eq!(groups(&mut admin), ["No project", "compiler"]);

    admin.click(".heading a[href='/prices']");
    admin.assert_says("No prices");
    admin.eval("document.querySelector('#set form').noValidate = true");
    admin.fill("#set [name=prompt]", "cheap");
    admin.fill("#set [name=completion]", "1000000");
    admin.fill("#set [name=currency]", "eur");
    admin.click("#set button");
    admin.assert_says("A price is an amount such as 0.20");
    admin.fill("#set [name=prompt]", "1000");
    admin.click("#set button");
    admin.assert_says("The price was set.");
    admin.fill("#set [name=project]", "compiler");
    admin.fill("#set [name=prompt]", "0");
    admin.fill("#set [name=completion]", "250000");
    admin.click("#set button");
    admin.assert_says("All prices are in EUR");

    // Three and four tokens each: 3 × (3 × 0.001 + 4 × 1), and 2 × 4 × 0.25.
    admin.go("/usage?range=24h&group=project&sort=-cost");
    let costs = "[...document.querySelectorAll('#breakdown td[data-label=Cost]')].map(cell => cell.innerText)";
    assert_eq!(admin.eval(costs), serde_json::json!(["12.01 EUR", "2.00 EUR", "14.01 EUR"]));
    admin.assert_says("computed, not billed");
    admin.assert_says("5 of 5 requests have measured tokens and a price");
    assert!(download(&mut admin, "Export CSV").contains(",12.009,EUR,3"));
    assert!(download(&mut admin, "Export JSON").contains("\"cost\": \"12.009\""));
    developer.go("/usage?range=30d&by=day");
    developer.assert_says("2.00 EUR");
    assert_eq!(count(&mut developer, ".heading a[href=\"/prices\"]"), 0);

    admin.go("/prices");
    admin.click("tbody tr:nth-child(1) button");
    admin.assert_says("The price was removed.");
    assert_eq!(admin.errors(), Vec::<String>::new());
    assert_eq!(developer.errors(), Vec::<String>::new());
}

#[test]
fn any_range_with_a_time_is_chosen_by_keyboard_and_compared() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    let key = Console::make_key(&mut page, "K");
    (0..4).for_each(|_| drop(console.service.chat(&key, "Hello!").completion()));
    page.go("/usage");
    page.choose("[name=from]", "2026-01-01T10:20");
    page.choose("[name=to]", "2026-01-01T11:40");
    page.eval("document.querySelector('[name=to]').focus()");
    page.eval("setTimeout(() => document.querySelector('[name=to]').form.requestSubmit())");
    page.wait_until("location.search.includes('range=custom') && document.readyState == 'complete'");
    page.assert_says("From 1 Jan");
    page.assert_says("No requests in this period");
    assert_eq!(page.eval("document.querySelector('[name=from]').value"), "2026-01-01T10:20", "what was chosen is kept");
    for (query, says) in [
        ("from=2026-01-02T00:00&to=2026-01-01T00:00", "The range ends before it begins."),
        ("from=2999-01-01T00:00&to=2999-01-02T00:00", "The range begins in the future."),
        ("from=2020-01-01T00:00&to=2026-01-01T00:00", "A range has at most 366 days."),
        ("from=now&to=then", "Enter both times"),
    ] {
        page.go(&format!("/usage?range=custom&{query}"));
        page.assert_says(says);
    }
    // From the minute of the first request on: exact within the hour.
    let received = console.service.rows()[3]["received_at"].as_str().unwrap()[..16].to_owned();
    page.go(&format!("/usage?range=custom&from={received}&to=2999-01-01T00:00&group=key"));
    assert_eq!(page.eval("document.querySelector('.totals .figure').innerText"), "4");
    assert_eq!(groups(&mut page).len(), 1);
    assert_eq!(page.errors(), Vec::<String>::new());
}

#[test]
fn requests_and_the_audit_log_are_filtered_and_exported() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    let key = Console::make_key(&mut page, "Night shift");
    Console::make_key(&mut page, "Other");
    (0..3).for_each(|_| drop(console.service.chat(&key, "Hello!").completion()));
    console.service.chat(&key, &"x".repeat(10_001)).expect_error("invalid_request");

    page.go("/requests");
    assert_eq!(count(&mut page, "tbody tr"), 4);
    page.choose("[name=status]", "failed");
    page.click(".filters button");
    assert_eq!(count(&mut page, "tbody tr"), 1);
    assert_eq!(download(&mut page, "Export CSV").lines().count(), 2, "only rows that the filter matches");
    page.go("/requests?slower=3600000");
    page.assert_says("No matching requests");
    page.go("/requests?slower=fast");
    page.assert_says("whole number of milliseconds");

    page.go("/audit");
    page.fill("[name=action]", "created key");
    page.fill("[name=subject]", "night");
    page.click(".filters button");
    assert_eq!(count(&mut page, "tbody tr"), 1);
    page.assert_says("Night shift");
    assert_eq!(download(&mut page, "Export CSV").lines().count(), 2);
    assert_eq!(download(&mut page, "Export JSON").matches("\"number\"").count(), 1);
    page.go("/audit?actor=nobody");
    page.assert_says("No matching entries");
    page.click(".empty a");
    page.assert_says("created key");
    assert_eq!(page.errors(), Vec::<String>::new());
}
