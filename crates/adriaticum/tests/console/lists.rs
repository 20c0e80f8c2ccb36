//! Lists: times, sorting, paging, filters, the keyboard.

use serde_json::{Value, json};

use crate::browser::Page;
use crate::people::Console;

#[test]
fn times_are_relative_and_show_the_readers_zone_beside_utc() {
    let console = Console::start();
    let mut page = console.person("Ada", "developer");
    Console::make_key(&mut page, "K");
    page.set_time_zone("Asia/Tokyo");
    page.go("/keys");
    let created = "document.querySelector('td[data-label=Created] time')";
    assert_eq!(page.eval(&format!("{created}.textContent")), "just now");
    let title = page.eval(&format!("{created}.title"));
    let (tokyo, utc) = title.as_str().unwrap().split_once(" · ").expect("both zones");
    assert!(tokyo.ends_with("GMT+9") && utc.ends_with("UTC"), "{title}");
    page.assert_says("Times are in your time zone, Asia/Tokyo (GMT+9).");
    // The page stays open and becomes visible again.
    for (seconds, says) in [
        (-59, "just now"),
        (-61, "1 minute ago"),
        (-7_199, "1 hour ago"),
        (-86_400 * 45, "1 month ago"),
        (-86_400 * 800, "2 years ago"),
        (59, "in 1 minute"),
        (86_400 * 30 - 5, "in 30 days"),
        (86_400 * 365, "in 12 months"),
    ] {
        page.eval(&format!(
            "{created}.dateTime = new Date(Date.now() + 1000 * {seconds}).toISOString();
            document.dispatchEvent(new Event('visibilitychange'))"
        ));
        assert_eq!(page.eval(&format!("{created}.textContent")), says, "{seconds}");
    }
    let mut plain = console.sign_in("Ada");
    plain.set_time_zone("Asia/Tokyo");
    plain.disable_scripts();
    plain.go("/keys");
    plain.assert_says("All times are UTC.");
    let written = plain.eval(&format!("{created}.textContent + ' of ' + {created}.title"));
    let (short, exact) = written.as_str().unwrap().split_once(" of ").unwrap();
    let (date, time) = short.split_once(", ").expect("date and time");
    assert!(exact.starts_with(date) && exact.contains(time) && exact.ends_with(" UTC"), "{written}");
}

/// The names in the first column.
fn names(page: &mut Page) -> Value {
    page.eval("[...document.querySelectorAll('tbody th a')].map(link => link.textContent)")
}

/// Which column is sorted, and how.
fn sorted(page: &mut Page) -> Value {
    page.eval("[...document.querySelectorAll('th[aria-sort]')].map(title => [title.textContent, title.ariaSort])")
}

#[test]
fn tables_are_sorted_by_column_title_and_keep_their_order() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    page.disable_scripts();
    for (name, requests) in [("beta", 1), ("Alpha", 2), ("gamma", 0)] {
        let key = console.service.key_with(name, &[]);
        (0..requests).for_each(|_| drop(console.service.chat(&key, "Hello!").completion()));
    }
    page.go("/keys");
    assert_eq!(sorted(&mut page), json!([["Created", "descending"]]));
    page.click("thead a[href$='sort=name']");
    assert_eq!(names(&mut page), json!(["Alpha", "beta", "gamma"]));
    page.click("thead a[href$='sort=-name']");
    assert_eq!(names(&mut page), json!(["gamma", "beta", "Alpha"]));
    page.click("thead a[href$='sort=-requests']");
    assert_eq!(names(&mut page), json!(["Alpha", "beta", "gamma"]));
    assert_eq!(sorted(&mut page), json!([["Requests (30 d)", "descending"]]));

    // Each table has a separate order, which is kept for the next visit.
    console.person("Grace", "developer");
    page.go("/team?sort=-name");
    assert_eq!(names(&mut page), json!(["Grace", "Ada"]));
    page.go("/keys");
    assert_eq!(sorted(&mut page), json!([["Requests (30 d)", "descending"]]));
    page.go("/team");
    assert_eq!(sorted(&mut page), json!([["Name", "descending"]]));
    page.go("/limits?sort=nonsense");
    page.go("/keys?find=BET");
    assert_eq!(names(&mut page), json!(["beta"]), "filters and order go together");
    assert_eq!(page.eval("document.cookie"), "", "scripts cannot read it");
}

#[test]
fn long_lists_come_in_pages_of_less_than_100_kb() {
    const KEYS: usize = 60;
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    // HTML needs six characters for each character of these names.
    let name = |number: usize| format!("{number:03}{}", "\"".repeat(97));
    std::thread::scope(|scope| {
        for half in [0..KEYS / 2, KEYS / 2..KEYS] {
            scope.spawn(|| {
                for number in half {
                    let key = console.service.key_with(&name(number), &[]);
                    let public = &key["adria_".len()..][..12];
                    console.service.run_ok(&["limits", "set", "--key", public, "requests-per-day", "5"]);
                }
            });
        }
    });
    for list in ["/keys?sort=name", "/limits?sort=for"] {
        page.go(list);
        assert_eq!(names(&mut page)[49], name(49));
        page.click("nav.pages a[rel=next]");
        assert_eq!(names(&mut page)[9], name(59));
        page.assert_says("Page 2 of 2, 60");
        page.click("nav.pages a[rel=prev]");
        assert_eq!(names(&mut page)[0], name(0));
    }
    page.click("tbody th a");
    let key = page.path();
    for path in ["/", "/keys", "/limits", "/requests", "/playground", "/team", "/audit", "/account", &key] {
        let size =
            page.eval(&format!("fetch('{path}').then(page => page.arrayBuffer()).then(page => page.byteLength)"));
        assert!(size.as_u64().unwrap() <= 100_000, "{path} has {size} bytes");
    }
}

#[test]
fn lists_are_used_by_keyboard() {
    let console = Console::start();
    let mut page = console.person("Ada", "admin");
    Console::make_key(&mut page, "K");
    for list in ["/keys", "/team"] {
        page.go(list);
        page.key("Tab");
        assert_eq!(page.eval("document.activeElement.textContent"), "Skip to content", "{list}");
        page.key("/");
        assert_eq!(page.eval("[document.activeElement.name, document.activeElement.value]"), json!(["find", ""]));
        page.insert("a/b"); // in a field it is a character like any other
        assert_eq!(page.eval("document.activeElement.value"), "a/b", "{list}");
    }
    // The tab key reaches every control of a page, and the focus is visible.
    for path in ["/", "/keys", "/limits", "/playground", "/team", "/requests", "/audit", "/account"] {
        page.go(path);
        let stops = "[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex=\"0\"]')]
            .filter(stop => !stop.disabled && stop.type != 'hidden' && stop.checkVisibility({ visibilityProperty: true })).length";
        let stops = page.eval(stops).as_u64().unwrap();
        let mut seen = std::collections::HashSet::new();
        // A field for a time has several stops: day, month and so on.
        let times = page.eval("document.querySelectorAll('input[type=datetime-local]').length").as_u64().unwrap();
        for _ in 0..stops + times * 7 + 2 {
            page.key("Tab");
            let here = "(() => { const here = document.activeElement, { outlineStyle } = getComputedStyle(here);
                const isMarked = outlineStyle != 'none' || !!here.closest('label')?.matches(':has(:focus-visible)');
                here.dataset.stop ??= document.querySelectorAll('[data-stop]').length;
                return [here.tagName, here.dataset.stop, isMarked || here == document.body]; })()";
            let here = page.eval(here);
            assert_eq!(here[2], true, "{path}: the focus cannot be seen on {here}");
            seen.insert(here[1].as_str().unwrap().to_owned());
        }
        // Buttons of one group are one stop.
        assert!(seen.len() as u64 + 4 >= stops, "{path}: {} of {stops}", seen.len());
    }
}

#[test]
fn an_empty_list_says_what_to_do_next() {
    let console = Console::start();
    let mut admin = console.person("Ada", "admin");
    let mut developer = console.person("Grace", "developer");
    for (path, says, next) in [
        ("/", "Start with an API key", "/keys#create"),
        ("/keys", "No keys yet", "#create"),
        ("/limits", "No limits", "#set"),
        ("/team?find=nobody", "No matching members", "/team"),
        ("/requests", "No requests yet", "/playground"),
    ] {
        admin.go(path);
        assert!(admin.eval("document.querySelector('.empty').textContent").as_str().unwrap().contains(says), "{path}");
        let link = format!("!!document.querySelector('.empty a[href=\"{next}\"]')");
        assert_eq!(admin.eval(&link), true, "{path} leads to {next}");
    }
    developer.go("/limits");
    developer.assert_says("Administrators set limits.");
    Console::make_key(&mut developer, "K");
    developer.go("/keys?find=nothing");
    developer.assert_says("No matching keys");
}
