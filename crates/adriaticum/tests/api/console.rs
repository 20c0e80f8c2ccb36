//! The console as scripts and operators meet it: its address, its set-up link, and the `accounts` command.

use std::net::SocketAddr;

use serde_json::Value;
use testbed::{Behaviour, Connection, FakeRuntime, Request, chat_body};

use crate::ADRIATICUM;

fn get(address: SocketAddr, host: &str, target: &str) -> (u16, String) {
    let request = Request::chat("", "").without("Authorization").method("GET").target(target).header("Host", host);
    let response = Connection::connect(address).send(request.bytes()).response();
    (response.status, String::from_utf8_lossy(&response.body).into_owned())
}

#[test]
fn the_set_up_link_is_printed_until_there_is_an_account() {
    let mut service = ADRIATICUM.service().start();
    let link = service.banner_value("Set up").unwrap();
    let (origin, path) = link.split_at(link.find("/welcome/").unwrap());
    let port: u16 = origin.strip_prefix("http://localhost:").unwrap().parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    assert!(get(address, "localhost", path).1.contains("Set up Adriaticum"));
    assert_eq!(get(address, "example.com", path).0, 404, "another host");
    service.kill();
    service.start_again();
    assert_ne!(service.banner_value("Set up").unwrap(), link);
    let accounts = service.run_ok(&["accounts", "list"]);
    assert!(accounts.contains("no accounts yet"), "{accounts}");
}

#[test]
fn a_second_service_leaves_the_first_ones_set_up_link_alone() {
    let first = ADRIATICUM.service().start();
    let second = ADRIATICUM.service().replica_of(&first).start();
    for service in [&first, &second] {
        let link = service.banner_value("Set up").unwrap();
        let (origin, path) = link.split_at(link.find("/welcome/").unwrap());
        let port: u16 = origin.rsplit(':').next().unwrap().parse().unwrap();
        assert!(get(([127, 0, 0, 1], port).into(), "localhost", path).1.contains("Set up Adriaticum"), "{link}");
    }
}

#[test]
fn one_address_serves_both_hosts() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let service = ADRIATICUM
        .service_with(&[&runtime])
        .set("api.listen", &address)
        .set("console.listen", &address)
        .set("api.base_url", "http://api.example.com/v1")
        .set("console.base_url", "http://console.example.com")
        .start();
    let key = service.key();
    let request = Request::chat(&key, chat_body("Hello!"));
    service.send(&request.clone().header("Host", "api.example.com")).completion();
    service.send(&request.header("Host", "console.example.com")).expect_error("not_found");
    assert!(get(service.address(), "console.example.com", "/sign-in").1.contains("Sign in"));
    assert!(get(service.address(), "api.example.com", "/sign-in").1.contains("not_found"));
    assert!(get(service.address(), "other.example.com", "/sign-in").1.contains("not_found"));
}

#[test]
fn sharing_an_address_needs_different_hosts() {
    let mut installation = ADRIATICUM.install();
    installation.set("api.listen", "127.0.0.1:18099");
    installation.set("console.listen", "127.0.0.1:18099");
    let output = installation.run(&["serve"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stderr.contains("`console.listen`") && output.stderr.contains("different hosts"), "{output:?}");
}

#[test]
fn the_console_can_be_turned_off() {
    let service = ADRIATICUM.service().set("console.listen", "none").start();
    assert!(service.banner_value("Console").is_none() && service.banner_value("Set up").is_none());
}

#[test]
fn the_accounts_command_lists_invites_and_reports_errors() {
    let mut installation = ADRIATICUM.install();
    installation.set("console.listen", "127.0.0.1:8091");
    let link = installation.run_ok(&["accounts", "invite", "Ada", "--role", "admin", "--expires", "2d"]);
    assert!(link.trim().starts_with("http://localhost:8091/welcome/") && link.lines().count() == 1, "{link}");
    let listed: Value = serde_json::from_str(&installation.run_ok(&["accounts", "list", "--json"])).unwrap();
    assert_eq!(listed, Value::Array(Vec::new()));
    for (arguments, says) in [
        (["accounts", "reset", "nobody@example.com"], "there is no account nobody@example.com"),
        (["accounts", "disable", "nobody@example.com"], "there is no account"),
        (["accounts", "enable", "not an address"], "not an e-mail address"),
    ] {
        let output = installation.run(&arguments);
        assert!(output.code != Some(0) && output.stderr.contains(says), "{output:?}");
    }
    let output = installation.run(&["accounts", "invite", "Bob", "--role", "king"]);
    assert!(output.stderr.contains("the role is `admin` or `developer`"), "{output:?}");
}
