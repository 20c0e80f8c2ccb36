//! Changing, disabling and deleting accounts.

use crate::people::{Console, PASSWORD};

#[test]
fn a_deleted_account_loses_its_keys_and_its_usage_stays() {
    let console = Console::start();
    let mut admin = console.person("Ada", "admin");
    let mut grace = console.person("Grace", "developer");
    let key = Console::make_key(&mut grace, "Compiler");
    console.service.chat(&key, "Hello!").completion();

    admin.go("/team");
    admin.eval("[...document.querySelectorAll('tbody th a')].find(link => link.textContent == 'Grace').id = 'grace'");
    admin.click("#grace");
    admin.fill("[name=name]", "Grace Hopper");
    admin.fill("[name=email]", "ada@example.com");
    admin.click("main section form button");
    admin.assert_says("There is an account with this e-mail address already.");
    admin.fill("[name=name]", "Grace Hopper");
    admin.fill("[name=email]", "hopper@example.com");
    admin.click("main section form button");
    admin.assert_says("Grace Hopper was saved.");
    let path = admin.path();

    let mut again = console.browser();
    again.go("/sign-in");
    again.fill("[name=email]", "hopper@example.com");
    again.fill("[name=password]", PASSWORD);
    again.click("main button[type=submit]");
    again.assert_says("Grace Hopper");

    // The keys of a disabled account still work; its page can revoke them.
    let id = path.rsplit('/').next().unwrap().to_owned();
    admin.click(&format!("form[action='/team/{id}/disable'] button"));
    admin.assert_says("Grace Hopper can no longer sign in.");
    assert_eq!(admin.path(), path);
    console.service.chat(&key, "Hello!").completion();
    admin.click("main button.danger");
    admin.assert_says("Revoked 1 key of Grace Hopper.");
    console.service.chat(&key, "Hello!").expect_error("invalid_api_key");

    admin.fill("[name=confirm]", "someone@example.com");
    admin.click("main button.danger");
    admin.assert_says("does not match. Nothing was deleted");
    admin.fill("[name=confirm]", "hopper@example.com");
    admin.click("main button.danger");
    admin.assert_says("Deleted Grace Hopper");
    assert_eq!(admin.path(), "/team");
    // The message names her; the table does not.
    assert!(!admin.eval("document.querySelector('tbody').textContent").as_str().unwrap().contains("Grace"));
    admin.go(&path);
    admin.assert_says("Not found");
    assert_eq!(console.service.rows().len(), 2, "what was recorded stays");
    admin.go("/audit");
    admin.assert_says("deleted the account");
    admin.assert_says("hopper@example.com");
    again.go("/");
    assert_eq!(again.path(), "/sign-in");
    assert_eq!(admin.errors(), Vec::<String>::new());
}

#[test]
fn the_last_administrator_cannot_be_deleted_and_an_address_is_free_again() {
    let console = Console::start();
    let mut admin = console.person("Ada", "admin");
    console.person("Grace", "developer");
    let refused = console.service.run(&["accounts", "delete", "ada@example.com"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("the last administrator"), "{refused:?}");
    console.service.run_ok(&["accounts", "delete", "grace@example.com"]);
    console.person("Grace", "developer");
    admin.go("/team");
    admin.assert_says("grace@example.com");
    console
        .service
        .run_ok(&["accounts", "set", "grace@example.com", "--name", "G. H.", "--new-email", "gh@example.com"]);
    let taken = console.service.run(&["accounts", "set", "gh@example.com", "--new-email", "ada@example.com"]);
    assert!(taken.code != Some(0) && taken.stderr.contains("already"), "{taken:?}");
    console.service.run_ok(&["accounts", "disable", "gh@example.com", "--revoke-keys"]);
}
