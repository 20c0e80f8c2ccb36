//! Changes that could take over an account or a key: administrators authenticate again, and cannot change themselves.

use testbed::{Response, Service};

use crate::ADRIATICUM;
use crate::sign_in_races::{add_app, between};
use crate::visitor::{PASSWORD, Visitor};

const ASKS: &str = "Confirm your identity";

fn text(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

fn account_id(service: &Service, email: &str) -> String {
    let listed: Vec<serde_json::Value> =
        serde_json::from_str(&service.run_ok(&["accounts", "list", "--json"])).unwrap();
    listed.iter().find(|account| account["email"] == email).unwrap()["id"].as_str().unwrap().to_owned()
}

/// Ada, an administrator, with a session that began with a recovery code: no recent password or passkey.
fn unconfirmed(service: &Service) -> (Visitor, String) {
    let codes = add_app(&Visitor::new(service).join(service, "Ada", "admin"));
    let (visitor, token) = Visitor::new(service).with_form("/sign-in");
    let step = visitor.sign_in(&token, "ada%40example.com", PASSWORD);
    let step = visitor.with_cookie(&step, "adriaticum_second_factor");
    let begun = step.send("POST", "/sign-in/second-factor", &format!("token={token}&code={}", codes[0]));
    visitor.with_cookie(&begun, "adriaticum_session").with_form("/account")
}

#[test]
fn administrators_authenticate_again_for_sensitive_changes() {
    let service = ADRIATICUM.service().start();
    let (ada, token) = unconfirmed(&service);
    let (grace, graces_token) = Visitor::new(&service).join(&service, "Grace", "developer").with_form("/keys");
    let created = text(&grace.send("POST", "/keys", &format!("token={graces_token}&name=bot&completions=yes")));
    let key = between(&created, "adria_", "_").to_owned();
    let id = account_id(&service, "grace@example.com");
    let changes = [
        (format!("/team/{id}/role"), "role=admin"),
        (format!("/team/{id}/reset"), ""),
        (format!("/team/{id}/remove-second-factors"), ""),
        (format!("/team/{id}/profile"), "name=Grace&email=mallory%40example.com"),
        ("/team/invitations".into(), "note=Mallory&role=admin&lifetime=1"),
        ("/team/second-factor".into(), "required=no"),
        (format!("/keys/{key}/rotate"), "overlap=0"),
        (format!("/keys/{key}/settings"), "owner=ada%40example.com&completions=yes"),
    ];
    for (path, fields) in &changes {
        let asked = ada.send("POST", path, &format!("token={token}&{fields}"));
        assert!(asked.status == 403 && text(&asked).contains(ASKS), "{path}: {asked:?}");
    }
    assert!(ada.page("/team").contains("grace@example.com"), "nothing was changed");
    // Other changes need no confirmation.
    let invited = ada.send("POST", "/team/invitations", &format!("token={token}&note=Bob&role=developer&lifetime=1"));
    assert_eq!(invited.status, 200, "{invited:?}");

    // The page posts the fields of the change to the same path.
    let (path, fields) = &changes[0];
    let page = text(&ada.send("POST", path, &format!("token={token}&{fields}")));
    assert!(page.contains(&format!("action=\"{path}\"")) && page.contains("name=\"role\" value=\"admin\""), "{page}");
    let wrong = ada.send("POST", path, &format!("token={token}&{fields}&confirm-password=a+wrong+guess"));
    assert!(wrong.status == 400 && text(&wrong).contains("The current password is incorrect."), "{wrong:?}");
    assert!(text(&wrong).contains(ASKS) && !text(&wrong).contains("a wrong guess"));
    let password = PASSWORD.replace(' ', "+");
    let right = ada.send("POST", path, &format!("token={token}&{fields}&confirm-password={password}"));
    assert_eq!((right.status, right.header("location")), (303, Some(format!("/team/{id}").as_str())), "{right:?}");
    // The confirmation lasts for some minutes.
    for (path, fields) in &changes[1..] {
        let changed = ada.send("POST", path, &format!("token={token}&{fields}"));
        assert!([200, 303].contains(&changed.status), "{path}: {changed:?}");
    }
}

/// An administrator's stolen cookie must not be enough to take over the account through the team's pages.
#[test]
fn administrators_change_their_own_account_on_its_page_only() {
    let service = ADRIATICUM.service().start();
    let (ada, token) = Visitor::new(&service).join(&service, "Ada", "admin").with_form("/account");
    drop(Visitor::new(&service).join(&service, "Boss", "admin"));
    let id = account_id(&service, "ada@example.com");
    for (step, fields) in [("reset", ""), ("remove-second-factors", ""), ("role", "role=developer")] {
        let refused = ada.send("POST", &format!("/team/{id}/{step}"), &format!("token={token}&{fields}"));
        assert_eq!((refused.status, refused.header("location")), (303, Some("/account")), "{step}: {refused:?}");
        assert!(!ada.page(&format!("/team/{id}")).contains(&format!("/team/{id}/{step}")), "{step} is not offered");
    }
    assert_eq!(service.run_ok(&["accounts", "links"]), "There are no pending links.\n");
}
