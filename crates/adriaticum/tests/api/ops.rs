//! The ops listener: liveness, readiness and metrics.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::{
    Background, Behaviour, Connection, FakeRuntime, FakeSearch, Request, Service, chat_body, unreachable_url, wait_for,
};

use crate::ADRIATICUM;

fn ready(service: &Service) -> (u16, Value) {
    let (status, body) = service.get_ops("/readyz");
    (status, serde_json::from_str(&body).unwrap())
}

/// Waits until it is ready, which a probe of the runtime decides.
fn wait_until_ready(service: &Service) -> Value {
    wait_for("readiness", || Some(ready(service)).filter(|(status, _)| *status == 200)).1
}

/// The value of a metric, by its name with its labels.
fn figure(service: &Service, name: &str) -> Option<f64> {
    let (status, text) = service.get_ops("/metrics");
    assert_eq!(status, 200);
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn a_service_that_can_serve_is_alive_and_ready() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).set("search.url", "searxng+http://127.0.0.1:1").start();
    assert_eq!(service.get_ops("/healthz"), (200, "ok\n".into()));
    let well = json!({ "ok": true });
    let parts = json!({ "ledger": well, "runtime": well, "search": well, "stopping": well });
    assert_eq!(wait_until_ready(&service), json!({ "ready": true, "parts": parts }));
}

#[test]
fn readiness_says_what_prevents_serving() {
    let closed = unreachable_url();
    for (setting, value, reason) in [("runtime.urls", closed.as_str(), "answers"), ("model", "none", "no runtime")] {
        let service = ADRIATICUM.service().set(setting, value).start();
        let says = |body: &Value| body["parts"]["runtime"]["reason"].as_str().is_some_and(|body| body.contains(reason));
        let (status, body) =
            wait_for("the first probe of the runtime", || Some(ready(&service)).filter(|(_, body)| says(body)));
        let runtime = &body["parts"]["runtime"];
        assert_eq!((status, &body["ready"], &runtime["ok"]), (503, &json!(false), &json!(false)));
        assert_eq!(body["parts"]["ledger"], json!({ "ok": true }));
        assert_eq!(body["parts"].get("search"), None, "none is configured");
        assert_eq!(service.get_ops("/healthz").0, 200);
    }
}

#[test]
fn a_runtime_that_hangs_does_not_hide_one_that_answers() {
    let (hanging, answering) = (FakeRuntime::start(Behaviour::Hang), FakeRuntime::start(Behaviour::Echo));
    for runtimes in [[&hanging, &answering], [&answering, &hanging]] {
        wait_until_ready(&ADRIATICUM.service_with(&runtimes).start());
    }
}

#[test]
fn readiness_follows_the_runtime() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    wait_until_ready(&service);
    runtime.set_behaviour(Behaviour::Close);
    runtime.set_health_behaviour(Behaviour::Close);
    wait_for("trouble", || {
        service.chat(&key, "hello");
        (ready(&service).0 == 503).then_some(())
    });
    runtime.set_behaviour(Behaviour::Echo);
    runtime.set_health_behaviour(Behaviour::Respond(200, "{}".into()));
    wait_for("recovery, which takes no request", || (ready(&service).0 == 200).then_some(()));
}

/// A suspended runtime accepts connections and sends nothing. It was once reported ready for a minute, and at times after.
#[test]
fn a_runtime_that_hangs_is_noticed_within_seconds() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    service.chat(&service.key(), "hello").completion();
    assert_eq!(ready(&service).0, 200);
    runtime.set_behaviour(Behaviour::Hang);
    runtime.set_health_behaviour(Behaviour::Hang);
    wait_for("trouble", || (ready(&service).0 == 503).then_some(()));
    // Also while its breaker would let a request try.
    let checks = || runtime.heads().iter().filter(|head| head.starts_with("GET ")).count();
    let before = checks();
    wait_for("more checks", || {
        let (status, body) = ready(&service);
        assert_eq!((status, body["parts"]["runtime"]["ok"].as_bool()), (503, Some(false)), "{body}");
        (checks() >= before + 2).then_some(())
    });
    runtime.set_behaviour(Behaviour::Echo);
    runtime.set_health_behaviour(Behaviour::Respond(200, "{}".into()));
    wait_for("recovery", || (ready(&service).0 == 200).then_some(()));
}

#[test]
fn a_runtime_that_is_reachable_but_completes_nothing_is_not_ready() {
    let runtime = FakeRuntime::start(Behaviour::Respond(500, "{}".into()));
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (status, body) = wait_for("the answer of the runtime", || {
        let (status, body) = ready(&service);
        let reason = body["parts"]["runtime"]["reason"].as_str()?.to_owned();
        (!reason.contains("yet")).then_some((status, reason))
    });
    assert_eq!(status, 503);
    assert!(body.contains("No runtime completes requests"), "{body}");
    for _ in 0..5 {
        assert_eq!(ready(&service).0, 503);
    }
    assert_eq!(runtime.requests().len(), 1, "for any number of checks");
    assert_eq!(figure(&service, "adriaticum_ready"), Some(0.0));

    runtime.set_behaviour(Behaviour::Echo);
    wait_for("recovery, which takes no request", || (ready(&service).0 == 200).then_some(()));
    let asked = runtime.requests();
    assert_eq!((asked.len(), &asked[1]["max_tokens"]), (2, &json!(1)), "the cheapest possible request");
    assert_eq!(figure(&service, "adriaticum_ready"), Some(1.0));
    assert_eq!(figure(&service, "adriaticum_requests_total{status=\"200\"}"), Some(0.0));
    assert!(service.rows().is_empty(), "probes are not recorded");
}

#[test]
fn a_runtime_that_serves_requests_is_not_probed() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    service.chat(&service.key(), "hello").completion();
    assert_eq!(ready(&service).0, 200);
    assert_eq!(runtime.requests().len(), 1);
}

#[test]
fn readiness_needs_search_if_everything_is_grounded() {
    let (runtime, search) =
        (FakeRuntime::start(Behaviour::Echo), FakeSearch::start(Behaviour::Respond(500, "{}".into())));
    let url = search.url();
    let service = ADRIATICUM.service_with(&[&runtime]).set("search.url", &url).set("grounding", "always").start();
    let key = service.key();
    wait_for("trouble", || {
        service.chat(&key, "hello").expect_error("search_unavailable");
        let (status, body) = ready(&service);
        (status == 503 && body["parts"]["search"]["ok"] == false).then_some(())
    });
    search.set_results(&[]);
    wait_for("recovery, which takes no request", || (ready(&service).0 == 200).then_some(()));
}

#[test]
fn metrics_cover_the_service_and_each_runtime() {
    let (runtime, other) = (FakeRuntime::start(Behaviour::EchoWhenReleased), unreachable_url());
    let url = runtime.url();
    let service = ADRIATICUM.service().set("runtime.urls", &format!("{url},{other}")).start();
    let key = service.key();
    let of = |name: &str, url: &str| figure(&service, &format!("{name}{{runtime=\"{url}\"}}"));
    assert_eq!(figure(&service, "adriaticum_ledger_healthy"), Some(1.0));
    assert_eq!(figure(&service, "adriaticum_requests_in_flight"), Some(0.0));
    assert_eq!(figure(&service, "adriaticum_requests_in_flight_limit"), Some(1024.0));
    let version = concat!("adriaticum_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
    assert_eq!(figure(&service, version), Some(1.0));
    let started = figure(&service, "process_start_time_seconds").unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!((0.0..600.0).contains(&(now - started)), "{started}");
    assert_eq!(of("adriaticum_runtime_up", &url), Some(1.0));
    wait_for("trouble with the other", || (of("adriaticum_runtime_up", &other)? == 0.0).then_some(()));

    let mut caller = service.connect();
    caller.send(Request::chat(&key, chat_body("hello")).bytes());
    runtime.wait_for_requests(1);
    assert_eq!(figure(&service, "adriaticum_requests_in_flight"), Some(1.0));
    assert_eq!(of("adriaticum_runtime_requests_in_flight", &url), Some(1.0));
    runtime.release();
    caller.response().completion();
    assert_eq!(of("adriaticum_runtime_requests_in_flight", &url), Some(0.0));
    assert_eq!(of("adriaticum_runtime_requests_completed_total", &url), Some(1.0));
    assert_eq!(of("adriaticum_runtime_share", &url), Some(1.0));
    assert!(of("adriaticum_runtime_request_seconds", &url).is_some_and(|time| time > 0.0));
    assert_eq!(of("adriaticum_runtime_request_seconds", &other), None, "it has completed no request");
    let failed = format!("adriaticum_runtime_requests_failed_total{{runtime=\"{url}\",reason=\"status\"}}");
    assert_eq!(figure(&service, &failed), Some(0.0));

    // Every metric has a help text.
    let (_, text) = service.get_ops("/metrics");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let ends = ["_total", "_bucket", "_sum", "_count"];
        let name = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(["adriaticum_", "gen_ai_", "process_"].iter().any(|start| name.starts_with(start)), "{line}");
        assert!(text.contains(&format!("# HELP {name} ")) && text.contains(&format!("# TYPE {name} ")), "{line}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn other_paths_are_not_found() {
    let service = ADRIATICUM.service().start();
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/v1/chat/completions", 404),
        ("GET", "/readyz/", 404),
        ("POST", "/readyz", 405),
        ("DELETE", "/metrics", 405),
    ] {
        let request = Request::chat("", "").without("Authorization").method(method).target(path);
        let response = Connection::connect(service.ops_address()).send(request.bytes()).response();
        assert_eq!(response.status, status, "{method} {path}");
        assert_eq!(response.header("allow").is_some(), status == 405);
    }
    // The API's listener does not serve them.
    let request = Request::chat("", "").without("Authorization").method("GET").target("/readyz");
    service.send(&request).expect_error("not_found");
}

#[test]
fn the_ops_listener_can_be_turned_off() {
    let service = ADRIATICUM.service().set("ops.listen", "none").start();
    assert!(service.banner_value("Ops").is_none());
    let output = service.run(&["health"]);
    assert!(output.code == Some(1) && output.stderr.contains("`ops.listen` is none"), "{output:?}");
}

#[test]
fn the_ops_listener_needs_its_own_address() {
    for other in ["api.listen", "console.listen"] {
        let mut installation = ADRIATICUM.install();
        installation.set(other, "127.0.0.1:18098");
        installation.set("ops.listen", "127.0.0.1:18098");
        let output = installation.run(&["serve"]);
        assert!(output.code == Some(1) && output.stderr.contains("need another address"), "{output:?}");
    }
}

#[test]
fn the_health_command_queries_the_ops_listener() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = ADRIATICUM.service_with(&[&runtime]).start();
    wait_until_ready(&service);
    let ops = service.ops_address().to_string();
    let everywhere = format!("--set=ops.listen=0.0.0.0:{}", service.ops_address().port());
    for arguments in [&["health", "--ops", &ops][..], &[&everywhere, "health"]] {
        let output = service.run(arguments);
        assert_eq!((output.code, output.stdout.as_str()), (Some(0), "ready\n"), "{output:?}");
    }
    service.kill();
    let output = service.run(&["health", "--ops", &ops]);
    assert!(output.code == Some(1) && output.stderr.contains("Is `adriaticum serve` running?"), "{output:?}");

    let unready = ADRIATICUM.service().start();
    let output = unready.run(&["health", "--ops", &unready.ops_address().to_string()]);
    assert_eq!(output.code, Some(1));
    assert!(output.stdout.starts_with("not ready\n  runtime ") && output.stdout.lines().count() == 2, "{output:?}");
}

#[test]
fn many_probes_do_not_disturb_callers() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let _silent: Vec<_> = (0..64).map(|_| Connection::connect(service.ops_address())).collect();
    let began = std::time::Instant::now();
    service.chat(&key, "hello").completion();
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Once, two addresses that filled the listener with connections without a request caused 503 for a third.
#[test]
fn a_liveness_probe_succeeds_despite_the_connections_of_others() {
    let service = ADRIATICUM.service().start();
    let address = service.ops_address();
    let healthz = Request::chat("", "").without("Authorization").method("GET").target("/healthz").bytes();
    let from = |last: u8| Connection::connect_from(Ipv4Addr::new(127, 0, 0, last).into(), address);
    let alive = |what: &str| assert_eq!(service.get_ops("/healthz"), (200, "ok\n".into()), "{what}");

    let silent: Vec<_> = [2, 3].iter().flat_map(|last| (0..16).map(|_| from(*last))).collect();
    alive("connections that never send anything");
    drop(silent);
    let mut half: Vec<_> = [2, 3].iter().flat_map(|last| (0..16).map(|_| from(*last))).collect();
    half.iter_mut().for_each(|connection| _ = connection.send_while_open(&healthz[..10]));
    alive("half a head on each");
    drop(half);
    let mut kept: Vec<_> = [2, 3].iter().flat_map(|last| (0..16).map(|_| from(*last))).collect();
    kept.iter_mut().for_each(|connection| _ = connection.send_while_open(&healthz));
    alive("connections that are kept open after a response");
    let flood = |last: u8| {
        Background::start(move |is_over| {
            let mut held = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) {
                held.push_back(Connection::connect_from(Ipv4Addr::new(127, 0, 0, last).into(), address));
                if held.len() == 50 {
                    held.pop_front();
                }
            }
        })
    };
    let _floods = [2, 3, 4, 5].map(flood);
    (0..50).for_each(|_| alive("a flood of connections"));
}
