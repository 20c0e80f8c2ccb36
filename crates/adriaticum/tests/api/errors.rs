//! Errors, as in docs/errors.md: the envelope, the order in which they win, and what is never disclosed.

use std::thread;

use testbed::{Behaviour, FakeRuntime, Http2Client, Request, Response, Service, chat_body, unreachable_url};

use crate::ADRIATICUM;

/// Faults of a request, in the order in which their errors win.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Host,
    Route,
    Key,
    Permission,
    Size,
    Content,
}

const FAULTS: [(Fault, u16, &str); 6] = [
    (Fault::Host, 404, "not_found"),
    (Fault::Route, 404, "not_found"),
    (Fault::Key, 401, "invalid_api_key"),
    (Fault::Permission, 403, "insufficient_permission"),
    (Fault::Size, 413, "payload_too_large"),
    (Fault::Content, 400, "invalid_request"),
];

/// Every combination of faults gets the error of its first fault; a valid request gets `without_fault`.
fn first_fault_wins(service: &Service, without_fault: (u16, &str)) {
    let (key, weak) = (service.key(), service.key_with("weak", &["--without-completions"]));
    for chosen in 0..1 << FAULTS.len() {
        let faults: Vec<_> = (0..FAULTS.len()).filter(|at| chosen & 1 << at != 0).map(|at| FAULTS[at]).collect();
        let has = |fault| faults.iter().any(|(other, ..)| *other == fault);
        let mut body = if has(Fault::Content) { "{".to_owned() } else { chat_body("hello") };
        if has(Fault::Size) {
            body.push_str(&" ".repeat(262_145 - body.len()));
        }
        let mut request = Request::chat(if has(Fault::Permission) { &weak } else { &key }, body);
        if has(Fault::Host) {
            request = request.header("Host", "console.example.com");
        }
        if has(Fault::Route) {
            request = request.target("/v1/models");
        }
        if has(Fault::Key) {
            request = request.header("Authorization", "Bearer nonsense");
        }
        let (status, code) = faults.first().map_or(without_fault, |(_, status, code)| (*status, *code));
        let refused = service.send(&request).error();
        assert_eq!((refused.status, refused.code.as_str()), (status, code), "{faults:?}: {refused:?}");
    }
}

#[test]
fn the_first_fault_wins_over_no_runtime() {
    first_fault_wins(&ADRIATICUM.service().start(), (503, "service_unavailable"));
}

#[test]
fn the_first_fault_wins_over_a_runtime_that_is_down() {
    first_fault_wins(&ADRIATICUM.service().set("runtime.urls", &unreachable_url()).start(), (502, "inference_error"));
}

#[test]
fn the_first_fault_wins_over_no_capacity() {
    let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_requests", "1").start();
    let mut held = service.connect();
    held.send(Request::chat(&service.key(), chat_body("hello")).bytes());
    runtime.wait_for_requests(1);
    first_fault_wins(&service, (503, "service_unavailable"));
    runtime.release();
    held.response().completion();
    assert_eq!(runtime.requests().len(), 1, "refused before any work");
}

#[test]
fn every_error_says_whether_a_retry_makes_sense() {
    let runtime = FakeRuntime::start(Behaviour::Respond(500, "{}".into()));
    let unreachable = unreachable_url();
    let failing = ADRIATICUM.service_with(&[&runtime]).start();
    let searching = ADRIATICUM
        .service_with(&[&runtime])
        .set("grounding", "always")
        .set("search.url", &format!("searxng+{unreachable}"))
        .start();
    let slow = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let full = ADRIATICUM.service_with(&[&slow]).set("api.max_requests", "1").start();
    let mut held = full.connect();
    held.send(Request::chat(&full.key(), chat_body("hello")).bytes());
    slow.wait_for_requests(1);
    let (key, weak) = (failing.key(), failing.key_with("weak", &["--without-completions"]));
    let good = |service: &Service| Request::chat(&service.key(), chat_body("hello"));
    for (service, request, code, should_retry) in [
        (&failing, good(&failing).target("/v1/models"), "not_found", "false"),
        (&failing, Request::chat("nonsense", chat_body("hello")), "invalid_api_key", "false"),
        (&failing, Request::chat(&weak, chat_body("hello")), "insufficient_permission", "false"),
        (&failing, Request::chat(&key, vec![b' '; 262_145]), "payload_too_large", "false"),
        (&failing, Request::chat(&key, "{"), "invalid_request", "false"),
        (&failing, good(&failing), "inference_error", "true"),
        (&searching, good(&searching), "search_unavailable", "true"),
        (&full, good(&full), "service_unavailable", "true"),
    ] {
        let response = service.send(&request);
        response.expect_error(code);
        assert_eq!(response.header("x-should-retry"), Some(should_retry), "{code}");
    }
    let unconfigured = ADRIATICUM.service().start();
    let response = unconfigured.chat(&unconfigured.key(), "hello");
    response.expect_error("service_unavailable");
    assert_eq!(response.header("x-should-retry"), Some("false"), "no runtime without a new configuration");
    slow.release();
    assert_eq!(held.response().header("x-should-retry"), None);
}

#[test]
fn a_wrong_content_type_ranks_with_an_invalid_body() {
    let service = ADRIATICUM.service().start();
    let plain = Request::chat(&service.key(), chat_body("hello")).header("Content-Type", "text/plain");
    service.send(&plain).expect_error("invalid_request");
    service.send(&plain.clone().body(vec![b' '; 262_145])).expect_error("payload_too_large");
    let weak = service.key_with("weak", &["--without-completions"]);
    service.send(&plain.header("Authorization", &format!("Bearer {weak}"))).expect_error("insufficient_permission");
}

#[test]
fn other_routes_and_methods_are_not_found() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let good = Request::chat(&service.key(), chat_body("hello"));
    for target in [
        "/", "/v1", "/v1/", "/v1/chat", "/v1/completions", "/v1/models", "/v2/chat/completions", "/chat/completions",
        "/v1/chat/completions/", "/v1/chat/completions/1", "//v1/chat/completions", "/v1//chat/completions",
        "/v1/./chat/completions", "/v1/x/../chat/completions", "/V1/chat/completions", "/v1/chat/Completions",
        "/v1/chat%2Fcompletions", "/v1%2fchat/completions", "/v1/chat/completion%73", "/v1/chat/completions;a=b",
        "/v1/chat\\completions", "/?/v1/chat/completions", "/health", "/metrics",
    ] {
        let refused = service.send(&good.clone().target(target)).error();
        assert_eq!((refused.status, refused.code.as_str()), (404, "not_found"), "{target}");
    }
    for method in ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post", "Post", "QUERY"] {
        let refused = service.send(&good.clone().method(method)).error();
        assert_eq!((refused.status, refused.code.as_str()), (404, "not_found"), "{method}");
    }
    service.send(&good.clone().method("OPTIONS").target("*").body("")).expect_error("not_found");
    let head = service.connect().send(good.clone().method("HEAD").body("").bytes()).response_to_head();
    assert_eq!(head.status, 404);
    assert!(head.header("x-request-id").is_some_and(|id| id.starts_with("chatcmpl_")));
    assert_eq!(runtime.requests().len(), 0);
}

#[test]
fn a_base_url_with_a_path_serves_only_that_path() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.base_url", "http://localhost/llm/v1/").start();
    let good = Request::chat(&service.key(), chat_body("hello"));
    service.send(&good.clone().target("/llm/v1/chat/completions")).completion();
    service.send(&good).expect_error("not_found");
}

/// A request line's target, the Host headers, and whether that is the API.
type HostCase<'a> = (&'a str, &'a [&'a str], bool);

#[test]
fn only_the_apis_host_serves_it() {
    const HERE: &str = "/v1/chat/completions";
    hosts(
        "http://localhost:8080/v1",
        &[
            (HERE, &["localhost"], true),
            (HERE, &["LocalHost:8080"], true),
            (HERE, &["localhost:1"], true),
            (HERE, &["localhost."], true),
            (HERE, &["127.0.0.1:8080"], true),
            (HERE, &["127.1.2.3"], true),
            (HERE, &["[::1]"], true),
            (HERE, &["[::1]:8080"], true),
            (HERE, &["example.com"], false),
            (HERE, &["localhost.example.com"], false),
            (HERE, &["xlocalhost"], false),
            (HERE, &["10.0.0.1"], false),
            (HERE, &["128.0.0.1"], false),
            (HERE, &["[::2]"], false),
            (HERE, &["0.0.0.0"], false),
            (HERE, &[""], false),
            (HERE, &[":8080"], false),
            (HERE, &["local host"], false),
            (HERE, &["localhost/"], false),
            (HERE, &["http://localhost"], false),
            (HERE, &["localhost, example.com"], false),
            (HERE, &["localhost", "localhost"], false),
            (HERE, &["localhost", "example.com"], false),
            (HERE, &[], false),
            ("http://localhost/v1/chat/completions", &["localhost"], true),
            ("http://LOCALHOST:99/v1/chat/completions", &[], true),
            ("http://127.0.0.1/v1/chat/completions", &["localhost"], true),
            ("http://example.com/v1/chat/completions", &["localhost"], false),
            ("http://example.com/v1/chat/completions", &[], false),
            ("http://localhost/v1/chat/completions", &["example.com"], false),
            ("http://localhost/v1/models", &["localhost"], false),
        ],
    );
    hosts(
        "https://api.example.com/v1",
        &[
            (HERE, &["api.example.com"], true),
            (HERE, &["API.EXAMPLE.COM:443"], true),
            (HERE, &["api.example.com."], true),
            (HERE, &["console.example.com"], false),
            (HERE, &["example.com"], false),
            (HERE, &["localhost"], false),
            (HERE, &["127.0.0.1"], false),
            ("https://api.example.com/v1/chat/completions", &["api.example.com"], true),
            ("https://console.example.com/v1/chat/completions", &["api.example.com"], false),
        ],
    );
}

fn hosts(base_url: &str, cases: &[HostCase]) {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.base_url", base_url).start();
    let good = Request::chat(&service.key(), chat_body("hello")).without("Host");
    for (target, hosts, ours) in cases {
        let request = hosts.iter().fold(good.clone().target(target), |request, host| request.add_header("Host", host));
        let expected = if *ours { (200, None) } else { (404, Some("not_found".to_owned())) };
        assert_eq!(service.send(&request).outcome(), expected, "{base_url}: {target} {hosts:?}");
    }
}

/// User names do not belong to a host, and a port is a number: RFC 9110, 7.2.
#[test]
fn an_invalid_host_is_not_found() {
    hosts(
        "http://localhost:8080/v1",
        &[
            ("/v1/chat/completions", &["example.com@localhost"], false),
            ("/v1/chat/completions", &["localhost:port"], false),
            ("/v1/chat/completions", &["localhost:99999999"], false),
        ],
    );
}

#[test]
fn http_1_0_gets_the_same_responses() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let old = |request: &Request| String::from_utf8(request.bytes()).unwrap().replacen("HTTP/1.1", "HTTP/1.0", 1);
    let good = Request::chat(&service.key(), chat_body("hello"));
    for (request, expected) in [
        (old(&good), (200, None)),
        (old(&good.clone().without("Host")), (404, Some("not_found"))),
        (old(&good.clone().without("Authorization")), (401, Some("invalid_api_key"))),
    ] {
        let received = service.connect().send(&request).read_to_end();
        let received = String::from_utf8(received).unwrap();
        assert!(received.starts_with(&format!("HTTP/1.0 {}", expected.0)), "{received}");
        assert!(expected.1.is_none_or(|code| received.contains(code)), "{received}");
    }
}

#[test]
fn http_2_gets_the_same_responses() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (key, weak) = (service.key(), service.key_with("weak", &["--without-completions"]));
    let to = |uri: &str| {
        let mut request = Http2Client::request(&key, chat_body("hello"));
        *request.uri_mut() = uri.parse().unwrap();
        request
    };
    let mut get = Http2Client::request(&key, "");
    *get.method_mut() = hyper::Method::GET;
    let mut other_host = Http2Client::request(&key, chat_body("hello"));
    other_host.headers_mut().insert("host", "example.com".parse().unwrap());
    let cases = [
        (Http2Client::request(&key, chat_body("hello")), 200, None),
        (to("http://127.0.0.1:1/v1/chat/completions"), 200, None),
        (to("http://example.com/v1/chat/completions"), 404, Some("not_found")),
        (other_host, 404, Some("not_found")),
        (to("http://localhost/v1/models"), 404, Some("not_found")),
        (get, 404, Some("not_found")),
        (Http2Client::request("nonsense", chat_body("hello")), 401, Some("invalid_api_key")),
        (Http2Client::request(&weak, chat_body("hello")), 403, Some("insufficient_permission")),
        (Http2Client::request(&key, vec![b' '; 262_145]), 413, Some("payload_too_large")),
        (Http2Client::request(&key, vec![b' '; 262_144]), 400, Some("invalid_request")),
        (Http2Client::request(&key, "{"), 400, Some("invalid_request")),
        (Http2Client::request("nonsense", vec![b' '; 2_000_000]), 401, Some("invalid_api_key")),
        (Http2Client::request(&key, chat_body("again")), 200, None),
    ];
    let client = Http2Client::connect(service.address());
    let (requests, expected): (Vec<_>, Vec<_>) =
        cases.into_iter().map(|(request, status, code)| (request, (status, code.map(str::to_owned)))).unzip();
    let outcomes: Vec<_> = client.send(requests).iter().map(Response::outcome).collect();
    assert_eq!(outcomes, expected);
    // Many concurrent streams on one connection.
    let many = (0..50).map(|n| Http2Client::request(&key, chat_body(&format!("number {n}")))).collect();
    for (n, response) in client.send(many).iter().enumerate() {
        assert_eq!(response.completion().content, format!("number {n}"));
    }
}

#[test]
fn nothing_of_a_runtime_reaches_the_caller() {
    const SECRET: &str = "Ozymandias";
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let error = format!(r#"{{"error":{{"message":"{SECRET}","type":"{SECRET}","code":"{SECRET}"}}}}"#);
    let overflow = format!(
        r#"{{"error":{{"message":"{SECRET}: This model's maximum context length is 8192 tokens. However, you requested 9660 tokens (9412 in the messages, 248 in the completion). {SECRET}","code":400}}}}"#
    );
    let mut cases = vec![
        (Behaviour::Respond(200, format!("<html>{SECRET}</html>")), "inference_error"),
        (
            Behaviour::Respond(200, format!(r#"{{"choices":[{{"message":{{"content":["{SECRET}"]}}}}]}}"#)),
            "inference_error",
        ),
        (Behaviour::Respond(400, overflow), "invalid_request"),
        (Behaviour::CloseInBody, "inference_error"),
        (Behaviour::Close, "inference_error"),
    ];
    cases.extend(
        [301, 400, 401, 403, 404, 413, 422, 429, 500, 503]
            .map(|status| (Behaviour::Respond(status, error.clone()), "inference_error")),
    );
    // Other members of the runtime's response are not passed on.
    let silent = format!(r#"{{"choices":[{{"message":{{"content":null,"refusal":"{SECRET}"}}}}]}}"#);
    for reply in [Behaviour::Respond(200, silent), Behaviour::completion("x", SECRET, None)] {
        runtime.set_behaviour(reply);
        let response = service.chat(&key, "hello");
        response.completion();
        assert!(!format!("{response:?}").contains(SECRET), "{response:?}");
    }
    for (reply, code) in cases {
        runtime.set_behaviour(reply.clone());
        let response = service.chat(&key, "hello");
        response.expect_error(code);
        let received = format!("{response:?}{}", String::from_utf8_lossy(&response.body));
        for hidden in [SECRET, "127.0.0.1", &runtime.address().port().to_string(), "scripted", "runtime"] {
            assert!(!received.contains(hidden), "{reply:?} discloses {hidden}: {received}");
        }
        if code == "inference_error" {
            // The log has the cause under the same id.
            let id = response.error().request_id;
            let log = service.log();
            let line = log.lines().find(|line| line.contains(&id)).unwrap_or_else(|| panic!("{id} is not in {log}"));
            assert!(line.contains(&runtime.address().to_string()), "{line}");
        }
    }
}

#[test]
fn every_response_has_its_own_request_id() {
    let service = ADRIATICUM.service().start();
    let key = service.key();
    let ids: Vec<Vec<String>> = thread::scope(|scope| {
        let ask = |_| {
            scope.spawn(|| {
                let mut connection = service.connect();
                let request = Request::chat(&key, chat_body("hello")).bytes();
                (0..25).map(|_| connection.send(&request).response().error().request_id).collect()
            })
        };
        let asking: Vec<_> = (0..4).map(ask).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).collect()
    });
    let mut all = ids.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 100);
    // A caller's own id is ignored.
    let given = Request::chat(&key, "").add_header("X-Request-Id", &all[0]);
    assert_ne!(service.send(&given).error().request_id, all[0]);
}
