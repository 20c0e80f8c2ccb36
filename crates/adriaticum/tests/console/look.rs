//! Every page at the width of a phone and of a desktop, light and dark: no script error or policy violation, nothing
//! wider than the screen, and no serious finding of axe.

use std::path::PathBuf;

use serde_json::Value;
use testbed::{Behaviour, FakeRuntime};

use crate::browser::Page;
use crate::people::Console;

/// If set, the folder for screenshots.
const PICTURES: &str = "CONSOLE_PICTURES";

/// Layout shifts as the browser counts them.
const SHIFTS: &str = "new Promise(tell => {
    const shifts = [];
    const note = shift => shifts.push({ value: shift.value, moved: shift.sources.map(({ node, previousRect, currentRect }) =>
        [node?.outerHTML?.slice(0, 80) ?? node?.textContent, previousRect.toJSON(), currentRect.toJSON()]) });
    const watch = new PerformanceObserver(seen => seen.getEntries().forEach(note));
    watch.observe({ type: 'layout-shift', buffered: true });
    requestAnimationFrame(() => requestAnimationFrame(() => {
        watch.takeRecords().forEach(note);
        tell(shifts);
    }));
})";

/// Bytes per second at which a page takes a second or two.
const SLOW: u32 = 12_000;

fn pages(key: &str, request: &str, member: &str) -> Vec<(&'static str, String)> {
    let public = &key["adria_".len()..][..12];
    vec![
        ("overview", "/".into()),
        ("keys", "/keys".into()),
        ("key", format!("/keys/{public}")),
        ("revoke", format!("/keys/{public}/revoke")),
        ("usage", "/usage?range=24h&group=key".into()),
        ("usage-days", "/usage?range=30d&group=time".into()),
        ("usage-people", "/usage?range=7d&by=hour&group=person".into()),
        ("usage-projects", "/usage?range=24h&group=project".into()),
        ("usage-wrong-range", "/usage?range=custom&from=2026-02-01T00:00&to=2026-01-01T00:00".into()),
        ("prices", "/prices".into()),
        ("requests", "/requests".into()),
        ("requests-none", "/requests?status=failed&slower=100000".into()),
        ("request", format!("/requests/{request}")),
        ("limits", "/limits".into()),
        ("playground", "/playground".into()),
        ("team", "/team".into()),
        ("member", member.into()),
        ("audit", "/audit".into()),
        ("audit-found", "/audit?action=key&actor=ada".into()),
        ("account", "/account".into()),
        ("second-factor", "/account/second-factor".into()),
        ("authenticator-app", "/account/second-factor/app".into()),
        ("not-found", "/nothing".into()),
    ]
}

#[test]
fn every_page_is_sound_at_every_width_and_in_both_themes() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    let key = Console::make_key(&mut page, "Nightly summaries");
    Console::make_key(&mut page, "A key with quite a long name that goes on and on");
    let request = console.service.chat(&key, "Hello!").completion().id;
    console.service.chat(&key, &"x".repeat(10_001)).expect_error("invalid_request");
    console.service.run_ok(&["accounts", "invite", "Grace from the compiler team", "--role", "admin"]);
    console.service.run_ok(&["accounts", "reset", "ada@example.com"]);
    for limit in [
        ["--everyone", "", "tokens-per-month", "1000000"],
        ["--person", "ada@example.com", "requests-per-day", "1"],
        ["--key", &key["adria_".len()..][..12], "requests-per-minute", "60"],
    ] {
        let arguments: Vec<_> = ["limits", "set"].into_iter().chain(limit).filter(|part| !part.is_empty()).collect();
        console.service.run_ok(&arguments);
    }
    let price = ["--prompt", "0.20", "--completion", "0.80"];
    console.service.run_ok(&[&["prices", "set", "--project", "search", "--currency", "EUR"], &price[..]].concat());
    console.service.run_ok(&[&["prices", "set", "--default"], &price[..]].concat());
    console.service.run_ok(&["keys", "set", &key["adria_".len()..][..12], "--project", "search", "--expires", "3d"]);
    console.person("Grace", "developer");
    page.go("/team");
    let member = page.eval("document.querySelector('tbody tr:last-child th a').getAttribute('href')");
    let member = member.as_str().unwrap().to_owned();
    let mut guest = console.browser();
    for (theme, width) in [("light", "desktop"), ("light", "phone"), ("dark", "desktop"), ("dark", "phone")] {
        for page in [&mut page, &mut guest] {
            page.set_theme(theme);
            if width == "phone" { page.phone() } else { page.desktop() }
        }
        for (name, path) in pages(&key, &request, &member) {
            look_at(&mut page, &path, &format!("{name}-{width}-{theme}"));
        }
        look_at(&mut guest, "/sign-in", &format!("sign-in-{width}-{theme}"));
        look_at(&mut guest, "/sign-in/second-factor", &format!("second-step-{width}-{theme}"));
    }
}

#[test]
fn a_conversation_is_sound_to_look_at() {
    let console = Console::start();
    let mut page = console.person("Ada", "developer");
    for (theme, width) in [("light", "desktop"), ("light", "phone"), ("dark", "desktop"), ("dark", "phone")] {
        page.set_theme(theme);
        if width == "phone" {
            page.phone()
        } else {
            page.desktop()
        }
        page.go("/playground");
        page.fill(".turn:nth-child(1) textarea", "You are a librarian. Answer in one paragraph.");
        page.fill(".turn:nth-child(2) textarea", &"What does a long question look like? ".repeat(12));
        page.press("#run");
        page.wait_until("document.querySelectorAll('.turn').length == 4");
        page.press("#run"); // with an empty message
        page.press("[name=language][value=Python]");
        assert_sound(&mut page, &format!("conversation-{width}-{theme}"));
        page.press("#clear");
    }
}

#[test]
fn a_fleet_of_runtimes_is_sound_to_look_at() {
    let replies =
        [Behaviour::Echo, Behaviour::Respond(500, "{}".into()), Behaviour::Echo, Behaviour::Respond(429, "{}".into())];
    let console = Console::with_runtimes(replies.into_iter().map(FakeRuntime::start).collect());
    let mut page = console.person("Ada", "admin");
    let key = Console::make_key(&mut page, "Nightly summaries");
    (0..40).for_each(|number| drop(console.service.chat(&key, &format!("Question {number}"))));
    for (theme, width) in [("light", "desktop"), ("light", "phone"), ("dark", "desktop")] {
        page.set_theme(theme);
        if width == "phone" {
            page.phone()
        } else {
            page.desktop()
        }
        look_at(&mut page, "/", &format!("fleet-{width}-{theme}"));
        page.assert_says("Retried elsewhere");
    }
}

#[test]
fn a_page_that_arrives_in_pieces_does_not_shift() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    let key = Console::make_key(&mut page, "Nightly summaries");
    for number in 0..8 {
        Console::make_key(&mut page, &format!("Key number {number} {}", "x".repeat(number * 8)));
    }
    let request = console.service.chat(&key, "Hello!").completion().id;
    (0..20).for_each(|_| drop(console.service.chat(&key, "Hello!")));
    page.go("/"); // scripts and styles are cached now, so that only the page itself is slow
    page.slow_network(SLOW);
    for (name, path) in pages(&key, &request, "/team") {
        page.go(&path);
        assert_unmoved(&mut page, name);
    }
}

fn assert_unmoved(page: &mut Page, name: &str) {
    let shifts = page.eval(SHIFTS);
    let shifted: f64 = shifts.as_array().unwrap().iter().map(|shift| shift["value"].as_f64().unwrap()).sum();
    assert!(shifted < 0.01, "{name} shifts while it loads: {shifts:#}");
}

fn look_at(page: &mut Page, path: &str, name: &str) {
    page.go(path);
    assert_unmoved(page, name);
    assert_sound(page, name);
}

fn assert_sound(page: &mut Page, name: &str) {
    if let Some(folder) = std::env::var_os(PICTURES) {
        page.screenshot(&PathBuf::from(folder).join(format!("{name}.png")));
    }
    assert_eq!(page.errors(), Vec::<String>::new(), "{name}");
    let beyond = page.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert!(beyond.as_i64().unwrap() <= 0, "{name} is wider than its screen by {beyond}");
    let serious = serious_findings(page);
    assert!(serious.is_empty(), "{name}: {serious:#?}");
}

/// Serious accessibility findings of axe.
fn serious_findings(page: &mut Page) -> Vec<Value> {
    page.eval(&axe());
    let rules = "{ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }";
    let found = page.eval(&format!(
        "axe.run(document, {rules}).then(found => found.violations.map(({{ id, impact, nodes }}) =>
            ({{ id, impact, nodes: nodes.map(node => node.target.join(' ') + ' ' + node.failureSummary) }})))"
    ));
    let is_serious =
        |finding: &Value| ["serious", "critical"].contains(&finding["impact"].as_str().unwrap_or_default());
    found.as_array().unwrap().iter().filter(|finding| is_serious(finding)).cloned().collect()
}

/// The source of axe-core, which `make test` gets from npm.
fn axe() -> String {
    let file = testbed::cache_folder().join("npm/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}; `tools/prepare --tests` gets it", file.display()))
}

#[test]
fn charts_are_read_by_keyboard_and_times_are_in_the_viewers_zone() {
    let console = Console::start();
    let mut page = console.person("Ada", "developer");
    let key = Console::make_key(&mut page, "K");
    console.service.chat(&key, "Hello!").completion();
    page.set_time_zone("Asia/Tokyo");
    page.go("/usage?range=24h");
    page.eval("document.querySelector('.chart').focus()");
    page.key("End");
    page.wait_until("document.querySelector('.chart .readout').textContent.includes('1 succeeded, 0 failed')");
    let (hour, tokyo) = (
        "document.querySelector('.chart .here').dataset",
        "{ timeZone: 'Asia/Tokyo', hour: '2-digit', minute: '2-digit' }",
    );
    let in_tokyo =
        page.eval(&format!("new Intl.DateTimeFormat('en-GB', {tokyo}).format(new Date(Number({hour}.slice)))"));
    let readout = page.eval("document.querySelector('.chart .readout').textContent");
    assert!(readout.as_str().unwrap().contains(in_tokyo.as_str().unwrap()), "{readout} {in_tokyo}");
    page.key("ArrowLeft");
    page.wait_until("document.querySelector('.chart .readout').textContent.includes('0 succeeded')");
}
