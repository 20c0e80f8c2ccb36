//! Bodies that are never completed: their memory is counted, limited, shared fairly and released.

use testbed::{Behaviour, FakeRuntime, Http2Client, PendingResponse, Request, Response, Service, chat_body, wait_for};

use crate::ADRIATICUM;

const LIMIT: &str = "8MiB";
const LIMIT_BYTES: u64 = 8 << 20;
/// Max. concurrent requests of an HTTP/2 connection.
const STREAMS: usize = 128;
const HALF_BYTES: usize = 250_000;

fn limited(runtime: &FakeRuntime) -> Service {
    ADRIATICUM.service_with(&[runtime]).set("api.max_body_memory", LIMIT).start()
}

/// The memory that bodies hold, by the metric.
fn held(service: &Service) -> u64 {
    service.metric("adriaticum_body_memory_bytes").unwrap() as u64
}

fn wait_until_held(service: &Service, bytes: u64) {
    wait_for("the budget", || (held(service) == bytes).then_some(()));
}

fn assert_refused(response: &Response) {
    response.expect_error("service_unavailable");
    assert!(response.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok()), "{response:?}");
}

/// A large request that is valid.
fn ordinary() -> String {
    chat_body(&"word ".repeat(2_000))
}

/// Sends all bodies of one HTTP/2 connection but their ends, and waits until the service has taken or refused them.
fn send_half_bodies(client: &Http2Client, key: &str) -> Vec<PendingResponse> {
    let halves = (0..STREAMS).map(|_| client.send_half(Http2Client::request(key, vec![b' '; HALF_BYTES])));
    let halves: Vec<_> = halves.collect();
    wait_for("the half bodies being sent", || halves.iter().all(PendingResponse::is_over).then_some(()));
    halves
}

#[test]
fn half_sent_bodies_over_http2_hold_no_more_memory_than_the_budget() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = limited(&runtime);
    let (greedy, modest) = (service.key(), service.key());
    service.chat(&modest, "warm").completion();
    let before = service.resident_bytes();

    let client = Http2Client::connect(service.address());
    let halves = send_half_bodies(&client, &greedy);
    let grown = service.resident_bytes().saturating_sub(before);
    println!("{STREAMS} half bodies of {HALF_BYTES} bytes: {} KiB more memory", grown >> 10);
    // All half bodies together have 32 MB.
    assert!(grown < 20 << 20, "{grown} bytes for half-sent bodies");
    let taken = held(&service);
    assert!((LIMIT_BYTES / 2..=LIMIT_BYTES).contains(&taken), "{taken} bytes are counted");

    // Bodies of other callers are read, over the same connection or another.
    service.send(&Request::chat(&modest, ordinary())).completion();
    for response in client.send((0..3).map(|_| Http2Client::request(&modest, ordinary())).collect()) {
        response.completion();
    }
    let (answered, waiting): (Vec<_>, Vec<_>) = halves.into_iter().partition(PendingResponse::is_answered);
    assert!(answered.len() >= STREAMS / 2, "{} are refused, {} wait", answered.len(), waiting.len());
    answered.into_iter().for_each(|half| assert_refused(&client.response(half).unwrap()));
    drop((client, waiting));
    wait_until_held(&service, 0);
    service.send(&Request::chat(&greedy, ordinary())).completion();
}

#[test]
fn bodies_over_http1_take_their_declared_length_before_they_are_read() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = limited(&runtime);
    let (greedy, modest) = (service.key(), service.key());
    let half = Request::chat(&greedy, vec![b' '; 200_000]);
    let (mut waiting, mut refused) = (Vec::new(), 0);
    for _ in 0..60 {
        let before = held(&service);
        let mut connection = service.connect();
        connection.send(half.head()).send([b' '; 10]);
        // One key may use four fifths of the budget. The head alone decides.
        if before + 200_000 <= LIMIT_BYTES * 4 / 5 {
            wait_until_held(&service, before + 200_000);
            waiting.push(connection);
        } else {
            assert_refused(&connection.response());
            refused += 1;
        }
    }
    assert_eq!((waiting.len(), refused), (33, 27));
    service.send(&Request::chat(&modest, ordinary())).completion();
    // A waiting body can still be completed. A request that ends in any way releases its part.
    let mut finished = waiting.pop().unwrap();
    finished.send(vec![b' '; 200_000 - 10]).response().expect_error("invalid_request");
    wait_until_held(&service, 32 * 200_000);
    drop(waiting);
    wait_until_held(&service, 0);
    service.send(&Request::chat(&greedy, ordinary())).completion();
}

#[test]
fn bodies_without_a_declared_length_take_their_part_as_they_arrive() {
    let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_body_memory", "512KiB").start();
    let (greedy, modest) = (service.key(), service.key());
    let chunk = |bytes: usize| [format!("{bytes:x}\r\n").as_bytes(), &vec![b' '; bytes], b"\r\n"].concat();
    let head = Request::chat(&greedy, "").chunked(1).head();

    let mut first = service.connect();
    first.send(&head);
    wait_until_held(&service, 64 << 10);
    first.send(chunk(100_000));
    wait_until_held(&service, 100_000 + (64 << 10));
    // A second body begins, but there is no room for the rest.
    let mut second = service.connect();
    second.send(&head).send(chunk(10_000));
    wait_until_held(&service, 110_000 + (128 << 10));
    second.send_while_open([chunk(200_000), b"0\r\n\r\n".to_vec()].concat());
    assert_refused(&second.response());
    wait_until_held(&service, 100_000 + (64 << 10));
    drop(first);
    wait_until_held(&service, 0);

    // While a completion runs, the actual size of its body is counted.
    let body = ordinary();
    let mut running = service.connect();
    running.send(Request::chat(&modest, body.as_str()).chunked(1_000).bytes());
    runtime.wait_for_requests(1);
    assert_eq!(held(&service), body.len() as u64);
    runtime.release();
    running.response().completion();
    wait_until_held(&service, 0);
}

#[test]
fn without_memory_for_a_body_earlier_errors_still_win_and_no_100_is_sent() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_body_memory", "4KiB").start();
    let (key, weak) = (service.key(), service.key_with("weak", &["--without-completions"]));
    let large = Request::chat(&key, vec![b' '; 10_000]);
    for (request, code) in [
        (large.clone().target("/"), "not_found"),
        (large.clone().header("Authorization", "Bearer x"), "invalid_api_key"),
        (large.clone().header("Authorization", &format!("Bearer {weak}")), "insufficient_permission"),
        (large.clone().body(vec![b' '; 262_145]), "payload_too_large"),
    ] {
        service.send(&request).expect_error(code);
    }
    for request in [large.clone(), large.clone().chunked(100), large.clone().header("Content-Type", "text/plain")] {
        assert_refused(&service.send(&request));
    }
    let mut waiting = service.connect();
    assert_refused(&waiting.send(large.header("Expect", "100-continue").head()).response());
    waiting.assert_closed();
    service.chat(&key, "hello").completion();
    assert_eq!(runtime.requests().len(), 1);
    assert_eq!(service.rows().iter().filter(|row| row["status"] == 503).count(), 4, "refusals are recorded");
}

#[test]
fn callers_without_a_key_hold_nothing_and_slow_ones_release_their_part() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service =
        ADRIATICUM.service_with(&[&runtime]).set("api.max_body_memory", LIMIT).set("api.body_timeout", "300ms").start();
    let client = Http2Client::connect(service.address());
    service.chat(&service.key(), "warm").completion();
    let before = service.resident_bytes();
    let halves = send_half_bodies(&client, "nobody");
    for half in halves {
        client.response(half).unwrap().expect_error("invalid_api_key");
    }
    assert_eq!(held(&service), 0);
    let grown = service.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes for callers without a key");

    let key = service.key();
    let half = client.send_half(Http2Client::request(&key, vec![b' '; HALF_BYTES]));
    let message = client.response(half).unwrap().expect_error("invalid_request");
    assert!(message.contains("in time"), "{message}");
    wait_until_held(&service, 0);
}
