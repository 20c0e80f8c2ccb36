//! Second factors in a real browser: authenticator apps, recovery codes, passkeys, and administrators who require them.

use totp_rs::{Builder, Secret};

use crate::browser::Page;
use crate::people::{Console, PASSWORD};

/// The app's code, that many steps of 30 seconds from now.
fn code(key: &str, steps: u64) -> String {
    let app = Builder::new().with_secret(Secret::try_from_base32(key).unwrap()).build().unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    app.generate(now + steps * 30).to_string()
}

/// An authenticator app, with the recovery codes that were created for it.
struct App {
    key: String,
    /// The code with which it was added.
    used_code: String,
    recovery_codes: Vec<String>,
}

/// Adds an app to the signed-in account.
fn add_app(page: &mut Page) -> App {
    page.go("/account/second-factor/app");
    let key = page.eval("document.getElementById('key').textContent").as_str().unwrap().to_owned();
    let light = "getComputedStyle(document.querySelector('.qr rect')).fill";
    assert_eq!(page.eval(light), "rgb(255, 255, 255)", "the picture can be read");
    page.fill("[name=code]", "000000");
    page.fill("[name=password]", PASSWORD);
    page.click("main form button[type=submit]");
    page.assert_says("This code is wrong.");
    page.fill("[name=code]", &code(&key, 0));
    page.fill("[name=password]", "a wrong password");
    page.click("main form button[type=submit]");
    page.assert_says("The current password is incorrect.");
    let used_code = code(&key, 0);
    page.fill("[name=code]", &used_code);
    page.fill("[name=password]", PASSWORD);
    page.click("main form button[type=submit]");
    page.assert_says("The authenticator app was added.");
    let codes = page.eval("document.getElementById('codes').textContent.trim().split('\\n')");
    let recovery_codes = codes.as_array().unwrap().iter().map(|code| code.as_str().unwrap().to_owned()).collect();
    App { key, used_code, recovery_codes }
}

fn answer(page: &mut Page, code: &str) {
    page.fill("[name=code]", code);
    page.click("main form button[type=submit]");
}

#[test]
fn a_code_of_an_app_or_a_recovery_code_is_required_after_the_password() {
    let console = Console::start();
    let mut ada = console.person("Ada", "admin");
    let App { key, used_code, recovery_codes: codes } = add_app(&mut ada);
    assert_eq!(codes.len(), 10);

    let mut other = console.sign_in("Ada");
    assert_eq!(other.path(), "/sign-in/second-factor");
    other.go("/keys");
    assert_eq!(other.path(), "/sign-in", "the password alone gives no access");
    other.go("/sign-in/second-factor");
    answer(&mut other, "000000");
    other.assert_says("This code is wrong or was already used.");
    answer(&mut other, &used_code);
    other.assert_says("This code is wrong or was already used.");
    // The next step's code is accepted early, and once.
    let next = code(&key, 1);
    answer(&mut other, &next);
    assert_eq!(other.path(), "/");
    let mut again = console.sign_in("Ada");
    answer(&mut again, &next);
    again.assert_says("This code is wrong or was already used.");
    answer(&mut again, &codes[3].to_uppercase().replace('-', " "));
    assert_eq!(again.path(), "/");
    let mut third = console.sign_in("Ada");
    answer(&mut third, &codes[3]);
    third.assert_says("This code is wrong or was already used.");
    // Five tries per password.
    for _ in 0..4 {
        answer(&mut third, "111111");
    }
    answer(&mut third, &codes[4]);
    third.assert_says("Please sign in again.");
    assert_eq!(third.path(), "/sign-in");

    again.go("/account/second-factor");
    again.assert_says("9 codes left");
    again.eval("document.querySelectorAll('details').forEach(part => part.open = true)");
    again.fill("form[action='/account/second-factor/app/remove'] [name=password]", PASSWORD);
    again.click("form[action='/account/second-factor/app/remove'] button");
    again.assert_says("The authenticator app was removed.");
    let mut fourth = console.sign_in("Ada");
    assert_eq!(fourth.path(), "/");
    fourth.go("/audit");
    for line in ["added an authenticator app", "used a recovery code", "to enter the second factor of"] {
        fourth.assert_says(line);
    }
}

#[test]
fn codes_cannot_be_guessed_with_the_password() {
    let console = Console::start();
    let mut ada = console.person("Ada", "admin");
    let App { key, recovery_codes, .. } = add_app(&mut ada);
    let mut thief = console.sign_in("Ada");
    let mut guesses = 0;
    while !thief.text().contains("Too many codes were wrong. Use a passkey") {
        assert!(guesses < 20, "{}", thief.text());
        if thief.path() == "/sign-in" {
            thief = console.sign_in("Ada"); // five tries per password
        }
        answer(&mut thief, "000000");
        guesses += 1;
    }
    assert!(guesses > 10, "{guesses}");
    // Even the correct code is refused now. A recovery code, which cannot be guessed, still works.
    let mut ada = console.sign_in("Ada");
    answer(&mut ada, &code(&key, 1));
    ada.assert_says("Too many codes were wrong.");
    answer(&mut ada, &recovery_codes[0]);
    assert_eq!(ada.path(), "/");
}

#[test]
fn a_passkey_signs_in_without_a_password() {
    let console = Console::start();
    let mut grace = console.person("Grace", "developer");
    grace.add_authenticator();
    grace.go("/account/second-factor");
    grace.fill("[data-passkey] [name=name]", "My phone");
    grace.fill("[data-passkey] [name=password]", "a wrong password");
    grace.press("[data-passkey] button");
    grace.wait_until("document.querySelector('[data-passkey] [role=status]').textContent.includes('incorrect')");
    grace.fill("[data-passkey] [name=password]", PASSWORD);
    grace.click("[data-passkey] button");
    assert_eq!(grace.eval("document.querySelector('tbody').textContent.includes('My phone')"), true);
    grace.assert_says("You have none. Create some");
    grace.fill("form[action='/account/second-factor/codes'] [name=password]", PASSWORD);
    grace.click("form[action='/account/second-factor/codes'] button");
    let recovery = grace.eval("document.getElementById('codes').textContent.split('\\n')[0]");

    grace.click("form[action='/sign-out'] button");
    grace.go("/sign-in?next=%2Fkeys");
    grace.click("[data-passkey] button");
    assert_eq!(grace.path(), "/keys");
    grace.go("/account/second-factor");
    assert!(!grace.text().contains("never"), "it says when the passkey was used");

    // The password alone is no longer enough; a recovery code works.
    let mut elsewhere = console.sign_in("Grace");
    assert_eq!(elsewhere.path(), "/sign-in/second-factor");
    elsewhere.add_authenticator();
    elsewhere.press("[data-passkey] button");
    elsewhere
        .wait_until("document.querySelector('[data-passkey] [role=status]').textContent == 'No passkey was used.'");
    answer(&mut elsewhere, recovery.as_str().unwrap());
    assert_eq!(elsewhere.path(), "/");

    // A removed passkey does not sign in.
    grace.eval("document.querySelectorAll('details').forEach(part => part.open = true)");
    grace.fill("tbody [name=password]", PASSWORD);
    grace.click("tbody form button");
    grace.assert_says("The passkey was removed.");
    grace.click("form[action='/sign-out'] button");
    grace.press("[data-passkey] button");
    grace.wait_until("document.querySelector('[data-passkey] [role=status]').textContent.includes('was not accepted')");
    let refused: Vec<_> = grace.errors().into_iter().filter(|error| !error.contains("40")).collect();
    assert_eq!(refused, Vec::<String>::new());
}

/// Challenges are not stored, so visitors who share a network do not compete for room.
#[test]
fn no_visitor_evicts_the_passkey_challenge_of_a_neighbour() {
    let console = Console::start();
    let mut grace = console.person("Grace", "developer");
    grace.add_authenticator();
    grace.go("/account/second-factor");
    grace.fill("[data-passkey] [name=name]", "My phone");
    grace.fill("[data-passkey] [name=password]", PASSWORD);
    grace.click("[data-passkey] button");
    grace.click("form[action='/sign-out'] button");
    grace.go("/sign-in");
    let finished = grace.eval(
        "(async () => {
            const form = document.querySelector('[data-passkey]').dataset.form;
            const headers = { 'content-type': 'application/json', 'x-form-token': form };
            const post = (path, body) =>
                fetch('/sign-in/passkey/' + path, { method: 'POST', headers, body: JSON.stringify(body) });
            const begun = await (await post('begin', {})).json();
            for (let flood = 0; flood < 40; flood++) await post('begin', {});
            const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(begun.options.publicKey);
            const credential = (await navigator.credentials.get({ publicKey })).toJSON();
            return (await post('finish', { token: begun.token, next: '', credential })).status;
        })()",
    );
    assert_eq!(finished, 200);
}

#[test]
fn a_passkey_confirms_a_change_and_the_change_is_made() {
    let console = Console::start();
    let mut ada = console.person("Ada", "admin");
    console.person("Grace", "developer");
    ada.add_authenticator();
    ada.go("/account/second-factor");
    ada.fill("[data-passkey] [name=name]", "My phone");
    ada.fill("[data-passkey] [name=password]", PASSWORD);
    ada.click("[data-passkey] button");
    ada.fill("form[action='/account/second-factor/codes'] [name=password]", PASSWORD);
    ada.click("form[action='/account/second-factor/codes'] button");
    let recovery = ada.eval("document.getElementById('codes').textContent.split('\\n')[0]");
    ada.click("form[action='/sign-out'] button");
    ada.fill("[name=email]", &Console::email("Ada"));
    ada.fill("[name=password]", PASSWORD);
    ada.click("main button[type=submit]");
    answer(&mut ada, recovery.as_str().unwrap());

    ada.go("/team");
    ada.eval("[...document.querySelectorAll('tbody th a')].find(link => link.textContent == 'Grace').id = 'grace'");
    ada.click("#grace");
    let page = ada.path();
    ada.click("form[action$='/role'] button");
    ada.assert_says("Confirm your identity");
    ada.fill("[name=confirm-password]", "a wrong password");
    ada.click("#confirm button");
    ada.assert_says("The current password is incorrect.");
    ada.click("[data-passkey] button");
    ada.assert_says("Grace is now an admin.");
    assert_eq!(ada.path(), page);
}

#[test]
fn administrators_require_and_remove_second_factors() {
    let console = Console::start();
    let mut ada = console.person("Ada", "admin");
    let mut grace = console.person("Grace", "developer");
    ada.go("/team");
    ada.click("form[action='/team/second-factor'] button");
    // It applies immediately, to everyone: only the setup of a second factor is available.
    assert_eq!(ada.path(), "/account/second-factor");
    ada.assert_says("Your administrator requires a second factor.");
    for path in ["/", "/keys", "/team", "/usage.csv", "/account"] {
        grace.go(path);
        assert_eq!(grace.path(), "/account/second-factor", "{path}");
    }
    add_app(&mut grace);
    grace.go("/keys");
    assert_eq!(grace.path(), "/keys");
    add_app(&mut ada);

    // A person who has lost the phone.
    ada.go("/team");
    ada.eval("[...document.querySelectorAll('tbody th a')].find(link => link.textContent == 'Grace').id = 'grace'");
    ada.click("#grace");
    ada.assert_says("authenticator app");
    ada.click("form[action$='/remove-second-factors'] button");
    ada.assert_says("Removed the second factors of");
    grace.go("/keys");
    assert_eq!(grace.path(), "/sign-in");
    let mut again = console.sign_in("Grace");
    assert_eq!(again.path(), "/account/second-factor");

    // Sessions end when an administrator ends them, and when the role changes.
    ada.click("main form[action$='/sign-out'] button");
    ada.assert_says("Signed Grace out of 1 session.");
    again.go("/");
    assert_eq!(again.path(), "/sign-in");
    ada.go("/team");
    ada.click("form[action='/team/second-factor'] button");
    ada.assert_says("Second factors are now optional.");
    let mut last = console.sign_in("Grace");
    assert_eq!(last.path(), "/");
    console.service.run_ok(&["accounts", "role", "grace@example.com", "admin"]);
    last.go("/");
    assert_eq!(last.path(), "/sign-in");

    // The operator can do the same without the console.
    console.service.run_ok(&["accounts", "require-second-factor", "on"]);
    let mut operated = console.sign_in("Grace");
    assert_eq!(operated.path(), "/account/second-factor");
    console.service.run_ok(&["accounts", "remove-second-factors", "ada@example.com"]);
    console.service.run_ok(&["accounts", "sign-out", "grace@example.com"]);
    console.service.run_ok(&["accounts", "require-second-factor", "off"]);
    operated.go("/");
    assert_eq!(operated.path(), "/sign-in");
    assert_eq!(console.sign_in("Ada").path(), "/");
}
