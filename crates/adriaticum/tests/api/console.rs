//! The console as scripts and operators meet it: its address, its set-up link, and the `accounts` command.

use std::net::SocketAddr;

use serde_json::Value;
use testbed::{Connection, Reply, Request, Runtime, ask};

use crate::ADRIATICUM;

fn get(address: SocketAddr, host: &str, target: &str) -> (u16, String) {
    let request = Request::chat("", "").without("Authorization").method("GET").target(target).header("Host", host);
    let answer = Connection::to(address).send(request.bytes()).answer();
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

#[test]
fn the_set_up_link_is_printed_until_there_is_an_account() {
    let mut service = ADRIATICUM.setup().start();
    let link = service.told("Set up").unwrap();
    let (origin, path) = link.split_at(link.find("/welcome/").unwrap());
    let port: u16 = origin.strip_prefix("http://localhost:").unwrap().parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    assert!(get(address, "localhost", path).1.contains("Set up Adriaticum"));
    assert_eq!(get(address, "example.com", path).0, 404, "another host");
    service.kill();
    service.start_again();
    assert_ne!(service.told("Set up").unwrap(), link);
    let accounts = service.output(&["accounts", "list"]);
    assert!(accounts.contains("no accounts yet"), "{accounts}");
}

#[test]
fn a_second_service_leaves_the_first_ones_set_up_link_alone() {
    let first = ADRIATICUM.setup().start();
    let second = ADRIATICUM.setup().beside(&first).start();
    for service in [&first, &second] {
        let link = service.told("Set up").unwrap();
        let (origin, path) = link.split_at(link.find("/welcome/").unwrap());
        let port: u16 = origin.rsplit(':').next().unwrap().parse().unwrap();
        assert!(get(([127, 0, 0, 1], port).into(), "localhost", path).1.contains("Set up Adriaticum"), "{link}");
    }
}

#[test]
fn one_address_serves_both_hosts() {
    let runtime = Runtime::that(Reply::Echoes);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let service = ADRIATICUM
        .setup_with(&[&runtime])
        .set("api.listen", &address)
        .set("console.listen", &address)
        .set("api.base_url", "http://api.example.com/v1")
        .set("console.base_url", "http://console.example.com")
        .start();
    let key = service.key();
    let request = Request::chat(&key, ask("Hello!"));
    service.send(&request.clone().header("Host", "api.example.com")).completed();
    service.send(&request.header("Host", "console.example.com")).refused_as("not_found");
    assert!(get(service.address(), "console.example.com", "/sign-in").1.contains("Sign in"));
    assert!(get(service.address(), "api.example.com", "/sign-in").1.contains("not_found"));
    assert!(get(service.address(), "other.example.com", "/sign-in").1.contains("not_found"));
}

#[test]
fn one_address_for_one_host_is_refused_with_a_sentence() {
    let mut home = ADRIATICUM.home();
    home.set("api.listen", "127.0.0.1:18099");
    home.set("console.listen", "127.0.0.1:18099");
    let ran = home.run(&["serve"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("`console.listen`") && ran.stderr.contains("different hosts"), "{ran:?}");
}

#[test]
fn a_service_can_do_without_its_console() {
    let service = ADRIATICUM.setup().set("console.listen", "none").start();
    assert!(service.told("Console").is_none() && service.told("Set up").is_none());
}

#[test]
fn an_operator_lists_invites_and_is_refused_with_a_sentence() {
    let mut home = ADRIATICUM.home();
    home.set("console.listen", "127.0.0.1:8091");
    let link = home.output(&["accounts", "invite", "Ada", "--role", "admin", "--expires", "2d"]);
    assert!(link.trim().starts_with("http://localhost:8091/welcome/") && link.lines().count() == 1, "{link}");
    let listed: Value = serde_json::from_str(&home.output(&["accounts", "list", "--json"])).unwrap();
    assert_eq!(listed, Value::Array(Vec::new()));
    for (arguments, says) in [
        (["accounts", "reset", "nobody@example.com"], "there is no account nobody@example.com"),
        (["accounts", "disable", "nobody@example.com"], "there is no account"),
        (["accounts", "enable", "not an address"], "not an e-mail address"),
    ] {
        let ran = home.run(&arguments);
        assert!(ran.code != Some(0) && ran.stderr.contains(says), "{ran:?}");
    }
    let ran = home.run(&["accounts", "invite", "Bob", "--role", "king"]);
    assert!(ran.stderr.contains("the role is `admin` or `developer`"), "{ran:?}");
}
