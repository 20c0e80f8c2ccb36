//! Account administration in the console: disabling with keys, sessions, second factors.

use serde_json::Value;
use testbed::{Behaviour, FakeRuntime, Service};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

fn id_of(service: &Service, name: &str) -> String {
    let accounts: Vec<Value> = serde_json::from_str(&service.run_ok(&["accounts", "list", "--json"])).unwrap();
    accounts.iter().find(|account| account["name"] == name).unwrap()["id"].as_str().unwrap().to_owned()
}

#[test]
fn an_account_is_disabled_and_its_keys_revoked_in_one_step() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (ada, token) = Visitor::new(&service).join(&service, "Ada", "admin").with_form("/team");
    Visitor::new(&service).join(&service, "Bob", "developer");
    let path = format!("/team/{}", id_of(&service, "Bob"));
    assert!(!ada.page(&path).contains("Also revoke"), "there are none");
    let key = service.key();
    service.run_ok(&["keys", "set", &key[6..18], "--owner", "bob@example.com"]);
    assert!(ada.page(&path).contains("Also revoke 1 active key"));
    let form = format!("token={token}");
    assert_eq!(ada.send("POST", &format!("{path}/disable"), &form).status, 303);
    service.chat(&key, "hello").completion();
    assert_eq!(ada.send("POST", &format!("{path}/enable"), &form).status, 303);
    assert_eq!(ada.send("POST", &format!("{path}/disable"), &format!("{form}&revoke-keys=yes")).status, 303);
    service.chat(&key, "hello").expect_error("invalid_api_key");
    let audit = ada.page("/audit.csv");
    assert!(audit.contains("disabled the account of bob@example.com and revoked 1 key,"), "{audit}");
    let entries = ada.page("/audit.json?action=disabled-account");
    let entries: Vec<Value> = serde_json::from_str(&entries).unwrap();
    assert_eq!(
        (&entries[0]["details"]["revoked_keys"], &entries[1]["details"]["revoked_keys"]),
        (&1.into(), &Value::Null)
    );
}

#[test]
fn sessions_of_a_person_are_listed_and_ended_by_administrators() {
    let service = ADRIATICUM.service().start();
    let (ada, token) = Visitor::new(&service).join(&service, "Ada", "admin").with_form("/team");
    let (first, own) = Visitor::new(&service).join(&service, "Bob", "developer").with_form("/keys");
    let path = format!("/team/{}", id_of(&service, "Bob"));
    let ends = |page: &str| -> Vec<String> {
        let actions = page.split("action=\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
        actions.filter(|action| action.ends_with("/end")).collect()
    };
    let page = ada.page(&path);
    assert_eq!(ends(&page).len(), 1, "{page}");
    let listed = page.split_once("id=\"sessions\"").unwrap().1;
    assert!(listed.contains("127.0.0.1") && listed.contains("password"), "{page}");
    let second = Visitor::new(&service).enter("Bob");
    let sessions = ends(&ada.page(&path));
    assert_eq!(sessions.len(), 2);
    assert_eq!(first.send("POST", &sessions[0], &format!("token={own}")).status, 403, "not by Bob");
    assert_eq!(ada.send("POST", &sessions[0], &format!("token={token}")).status, 303);
    let is_signed_in = |visitor: &Visitor| visitor.send("GET", "/keys", "").status == 200;
    assert_eq!([is_signed_in(&first), is_signed_in(&second)].iter().filter(|is| **is).count(), 1);
    assert_eq!(ada.send("POST", &sessions[0], &format!("token={token}")).status, 404, "it has ended");
    assert_eq!(ada.send("POST", &format!("{path}/sign-out"), &format!("token={token}")).status, 303);
    assert!(!is_signed_in(&first) && !is_signed_in(&second));
    assert!(ada.page(&path).contains("Bob is not signed in."));
    assert!(ada.page("/audit.csv").contains("ended 1 session of bob@example.com,"));
}

#[test]
fn people_without_a_second_factor_are_listed() {
    let service = ADRIATICUM.service().start();
    let ada = Visitor::new(&service).join(&service, "Ada", "admin");
    Visitor::new(&service).join(&service, "Bob", "developer");
    Visitor::new(&service).join(&service, "Grace", "developer");
    service.run_ok(&["accounts", "disable", "grace@example.com"]);
    let page = ada.page("/team");
    let list = page.split_once("id=\"without-second-factor\"").unwrap_or_else(|| panic!("no list: {page}")).1;
    let list = list.split_once("</ul>").unwrap().0;
    assert!(page.contains("2 active accounts without a second factor"), "{page}");
    assert!(list.contains("ada@example.com") && list.contains("bob@example.com"), "{list}");
    assert!(!list.contains("grace@example.com"), "disabled: {list}");
}
