//! The API is served only on its host. Other hosts and addresses return `not_found`.

use std::net::SocketAddr;

use testbed::{Behaviour, Connection, FakeRuntime, Request, Service, chat_body, wait_for};

use crate::ADRIATICUM;

const METHODS: [&str; 7] = ["POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"];
const TARGETS: [&str; 5] = ["/v1/chat/completions", "/v1/chat/completions?a=b", "/v1", "/v1/", "/v1/models"];

/// Sends every request that could be meant for the API, with those hosts, to an address that does not serve it.
fn assert_not_served(service: &Service, address: SocketAddr, hosts: &[&str]) {
    let key = service.key();
    for host in hosts {
        for method in METHODS {
            for target in TARGETS {
                let request =
                    Request::chat(&key, chat_body("Hello!")).method(method).target(target).header("Host", host);
                let mut connection = Connection::connect(address);
                connection.send(request.bytes());
                let what = format!("{method} {target} at {host}");
                if method == "HEAD" {
                    let response = connection.response_to_head();
                    assert_eq!(response.status, 404, "{what}");
                    assert!(response.header("x-request-id").is_some(), "{what}");
                    continue;
                }
                let response = connection.response();
                assert_eq!(response.status, 404, "{what}: {response:?}");
                let message = response.expect_error("not_found");
                let base_url = service.banner_value("API").unwrap();
                assert!(message.contains("host") && message.contains(&base_url), "{what}: {message}");
            }
        }
    }
}

fn address_of(service: &Service, what: &str) -> SocketAddr {
    let url = service.banner_value(what).unwrap();
    let port = url.rsplit(':').next().unwrap().parse().unwrap();
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[test]
fn consoles_and_ops_addresses_do_not_serve_the_api() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    for what in ["Console", "Ops"] {
        assert_not_served(&service, address_of(&service, what), &["localhost", "127.0.0.1", "other.example.com"]);
    }
    assert_eq!(runtime.requests().len(), 0);
    assert!(service.rows().is_empty(), "no usage is recorded");
}

#[test]
fn on_one_address_the_consoles_host_does_not_serve_the_api() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let service = ADRIATICUM
        .service()
        .set("api.listen", &address)
        .set("console.listen", &address)
        .set("api.base_url", "http://api.example.com/v1")
        .set("console.base_url", "http://console.example.com")
        .start();
    assert_not_served(&service, service.address(), &["console.example.com", "other.example.com", "localhost"]);
}

#[test]
fn requests_to_the_wrong_address_are_logged_with_their_id() {
    let service = ADRIATICUM.service().start();
    let mut connection = Connection::connect(address_of(&service, "Console"));
    let refused = connection.send(Request::chat("x", chat_body("Hello!")).bytes()).response().error();
    let log = wait_for("the log line", || Some(service.log()).filter(|log| log.contains(&refused.request_id)));
    assert!(log.contains("not_found"), "{log}");
}

#[test]
fn a_wrong_host_path_or_method_is_named_with_the_real_base_url() {
    let service = ADRIATICUM.service().start();
    let base_url = service.banner_value("API").unwrap();
    let good = Request::chat("x", chat_body("Hello!"));
    let cases = [
        (good.clone().header("Host", "other.example.com"), "host"),
        (good.clone().target("/v1/completions"), "path"),
        (good.clone().target("/v1/chat/completions/"), "path"),
        (good.clone().target("/v1/models"), "list of models"),
        (good.clone().method("GET"), "method POST"),
    ];
    for (request, says) in cases {
        let message = service.send(&request).expect_error("not_found");
        let operation = format!("POST {base_url}/chat/completions");
        assert!(message.contains(says) && message.contains(&operation), "{says}: {message}");
    }
}

#[test]
fn serve_warns_if_only_this_machine_can_name_the_api() {
    let warned = |listen: &str, base_url: Option<&str>| {
        let mut setup = ADRIATICUM.service().set("api.listen", listen);
        if let Some(base_url) = base_url {
            setup = setup.set("api.base_url", base_url);
        }
        let service = setup.start();
        let checked = service.run(&["check"]).stdout;
        assert_eq!(service.banner().contains("Warning"), checked.contains("other machines get 404"), "{checked}");
        service.banner().contains("  Warning   callers on other machines get 404")
    };
    assert!(warned("0.0.0.0:0", None));
    assert!(warned("0.0.0.0:0", Some("http://127.0.0.1:9/v1")));
    assert!(!warned("0.0.0.0:0", Some("http://api.example.com/v1")));
    assert!(!warned("127.0.0.1:0", None));
}
