//! Connections: timeouts, fair limits, `100 Continue`, and bodies that are drained.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use testbed::{Behaviour, Connection, FakeRuntime, Http2Client, Request, Service, TIMEOUT, chat_body, wait_for};

use crate::ADRIATICUM;

const SHORT_TIMEOUT: &str = "300ms";
/// A little less than `SHORT_TIMEOUT`: the clocks of both sides differ.
const MIN_TIMEOUT: Duration = Duration::from_millis(280);
/// Shorter than every default timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(7);

/// In another network than the usual address.
const OTHER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 2, 2));

fn echoing() -> FakeRuntime {
    FakeRuntime::start(Behaviour::Echo)
}

/// The connection is closed without a response, after `SHORT_TIMEOUT` and before any default timeout.
fn assert_times_out(connection: &mut Connection, what: &str) {
    let began = Instant::now();
    connection.assert_closed();
    assert!((MIN_TIMEOUT..MAX_TIMEOUT).contains(&began.elapsed()), "{what}: {:?}", began.elapsed());
}

#[test]
fn a_head_must_arrive_in_time() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.head_timeout", SHORT_TIMEOUT).start();
    let request = Request::chat(&service.key(), chat_body("hello"));
    let head = request.head();
    for start in [&b""[..], b"P", b"PO", b"POST /v1/chat", &head[..head.len() - 2], b"\r\n"] {
        let mut connection = service.connect();
        connection.send(start);
        assert_times_out(&mut connection, &String::from_utf8_lossy(start));
    }
    // The second head on a connection has the same timeout as the first.
    let mut connection = service.connect();
    connection.send(request.bytes()).response().completion();
    connection.send(&head[..20]);
    assert_times_out(&mut connection, "the second head");

    // A byte now and then does not extend the timeout.
    let mut connection = service.connect();
    let began = Instant::now();
    for byte in head.chunks(1) {
        if began.elapsed() > MAX_TIMEOUT || !connection.send_while_open(byte) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    connection.assert_closed();
    assert!(began.elapsed() < MAX_TIMEOUT);
    assert_eq!(runtime.requests().len(), 1);
}

#[test]
fn a_head_must_arrive_in_time_also_on_a_connection_that_was_idle() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.head_timeout", SHORT_TIMEOUT).start();
    let request = Request::chat(&service.key(), chat_body("hello")).bytes();
    let mut connection = service.connect();
    connection.send(&request).response().completion();
    thread::sleep(2 * MIN_TIMEOUT);
    connection.send(&request[..20]);
    assert_times_out(&mut connection, "a head after a pause");
}

#[test]
fn a_body_must_keep_arriving() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.body_timeout", SHORT_TIMEOUT).start();
    let request = Request::chat(&service.key(), chat_body("hello"));
    for bytes in [request.bytes(), request.clone().chunked(10).bytes()] {
        let mut connection = service.connect();
        let began = Instant::now();
        let message = connection.send(&bytes[..bytes.len() - 7]).response().expect_error("invalid_request");
        assert!(message.contains("in time"), "{message}");
        assert!((MIN_TIMEOUT..MAX_TIMEOUT).contains(&began.elapsed()), "{:?}", began.elapsed());
        connection.assert_closed();
    }
    // A byte now and then does not extend it forever.
    let slow = request.clone().body(vec![b' '; 10_000]);
    let mut connection = service.connect();
    let mut sender = connection.second_handle();
    let began = Instant::now();
    let drip = thread::spawn(move || {
        sender.send_while_open(slow.head());
        while began.elapsed() < TIMEOUT && sender.send_while_open(b" ") {
            thread::sleep(Duration::from_millis(20));
        }
    });
    connection.response().expect_error("invalid_request");
    assert!(began.elapsed() < MAX_TIMEOUT);
    connection.assert_closed();
    drip.join().unwrap();
    assert_eq!(runtime.requests().len(), 0);
    assert_eq!(service.rows().len(), 3, "each of them had a key");
}

#[test]
fn an_idle_connection_is_closed() {
    idle_connections_are_closed(SHORT_TIMEOUT);
}

#[test]
fn an_idle_connection_is_closed_also_if_a_head_has_longer() {
    idle_connections_are_closed("1m");
}

fn idle_connections_are_closed(head_timeout: &str) {
    let runtime = echoing();
    let setup = ADRIATICUM
        .service_with(&[&runtime])
        .set("api.idle_timeout", SHORT_TIMEOUT)
        .set("api.head_timeout", head_timeout);
    let service = setup.start();
    let request = Request::chat(&service.key(), chat_body("hello"));
    let mut connection = service.connect();
    connection.send(request.bytes()).response().completion();
    assert_times_out(&mut connection, "after an answer");
    let mut connection = service.connect();
    connection.send(request.without("Authorization").bytes()).response().expect_error("invalid_api_key");
    assert_times_out(&mut connection, "after a refusal");
    // HTTP/2 with only its preface and empty settings, or not even that.
    for preface in [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], b"PRI * HT"] {
        let mut connection = service.connect();
        connection.send(preface);
        let began = Instant::now();
        connection.read_to_end();
        assert!((MIN_TIMEOUT..MAX_TIMEOUT).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}

#[test]
fn a_request_in_flight_is_not_idle() {
    let runtime = FakeRuntime::start(Behaviour::EchoAfter(Duration::from_millis(900)));
    let short = ["api.head_timeout", "api.idle_timeout", "api.body_timeout"];
    let setup = short.iter().fold(ADRIATICUM.service_with(&[&runtime]), |setup, name| setup.set(name, "200ms"));
    let service = setup.start();
    service.chat(&service.key(), "hello").completion();
}

#[test]
fn connections_over_the_limit_are_refused_and_other_addresses_get_in() {
    let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_connections", "5").start();
    let request = Request::chat(&service.key(), chat_body("hello")).bytes();
    // One address may hold four of five connections.
    let mut held: Vec<_> = (0..4).map(|_| service.connect()).collect();
    held.iter_mut().for_each(|connection| _ = connection.send(&request));
    runtime.wait_for_requests(4);
    runtime.set_behaviour(Behaviour::Echo);
    for _ in 0..3 {
        let mut over = service.connect();
        let response = over.send(&request).response();
        response.expect_error("service_unavailable");
        assert!(response.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok()), "{response:?}");
        over.assert_closed();
    }
    let mut other = Connection::connect_from(OTHER_ADDRESS, service.address());
    other.send(&request).response().completion();
    // Open connections are still served, and a closed one frees a slot for the next.
    runtime.release();
    held.iter_mut().for_each(|connection| drop(connection.response().completion()));
    held.iter_mut().for_each(|connection| drop(connection.send(&request).response().completion()));
    drop(other);
    held.pop();
    wait_for("a free slot", || {
        let mut connection = service.connect();
        (connection.send(&request).response().status == 200).then_some(connection)
    });
    let log = service.log();
    assert_eq!(log.matches("more connections than may be open").count(), 1, "logged once: {log}");
}

#[test]
fn an_idle_connection_is_closed_for_an_address_that_has_fewer() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_connections", "5").start();
    let request = Request::chat(&service.key(), chat_body("hello")).bytes();
    let mut idle: Vec<_> = (0..4).map(|_| service.connect()).collect();
    idle.iter_mut().for_each(|connection| drop(connection.send(&request).response().completion()));
    // The first one was used last, and the second one is in the middle of a head.
    idle[0].send(&request).response().completion();
    idle[1].send(&request[..20]);
    let from = |last: u8| Connection::connect_from(Ipv4Addr::new(127, 0, last, 1).into(), service.address());
    let (mut second, mut third, mut fourth) = (from(2), from(3), from(4));
    for connection in [&mut second, &mut third, &mut fourth] {
        connection.send(&request).response().completion();
    }
    idle[2].assert_closed();
    assert!(!idle[0].has_news(), "the one that was used last");
    idle[0].send(&request).response().completion();
    let still_open = idle[1..].iter().filter(|connection| !connection.has_news()).count();
    assert_eq!(still_open, 1, "two newcomers found no free slot");
}

#[test]
fn concurrent_requests_on_one_connection_count_like_connections() {
    let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_connections", "5").start();
    let key = service.key();
    let client = Http2Client::connect(service.address());
    let requests = |count| (0..count).map(|_| Http2Client::request(&key, chat_body("hello"))).collect();
    let responses = thread::scope(|scope| {
        let sending = scope.spawn(|| client.send(requests(12)));
        runtime.wait_for_requests(4);
        // The fifth slot is another address's.
        runtime.set_behaviour(Behaviour::Echo);
        let mut other = Connection::connect_from(OTHER_ADDRESS, service.address());
        other.send(Request::chat(&key, chat_body("hello")).bytes()).response().completion();
        wait_for("refusals", || {
            let refused = service.metric("adriaticum_requests_total{status=\"503\",code=\"service_unavailable\"}");
            (refused == Some(8.0)).then_some(())
        });
        runtime.release();
        sending.join().unwrap()
    });
    assert_eq!(responses.iter().filter(|response| response.status == 200).count(), 4);
    let refused: Vec<_> = responses.iter().filter(|response| response.status != 200).collect();
    for response in &refused {
        response.expect_error("service_unavailable");
        assert!(response.header("retry-after").is_some(), "{response:?}");
    }
    assert_eq!((refused.len(), runtime.requests().len()), (8, 5));
    // Completed requests have released their slots.
    assert!(client.send(requests(4)).iter().all(|response| response.status == 200));
}

#[test]
fn requests_over_the_limit_are_refused_and_other_keys_get_in() {
    let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.max_requests", "5").start();
    let (greedy, modest) = (service.key(), service.key());
    let begin = |key: &str, expected: usize| {
        let mut connection = service.connect();
        connection.send(Request::chat(key, chat_body("hello")).bytes());
        runtime.wait_for_requests(expected);
        connection
    };
    let refuse = |key: &str| {
        let response = service.chat(key, "hello");
        response.expect_error("service_unavailable");
        assert!(response.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok()), "{response:?}");
    };
    // One key gets at most four of five slots; the last is for others.
    let mut held: Vec<_> = (1..=4).map(|count| begin(&greedy, count)).collect();
    (0..3).for_each(|_| refuse(&greedy));
    held.push(begin(&modest, 5));
    refuse(&greedy);
    refuse(&modest);
    assert_eq!(runtime.requests().len(), 5, "refused before any work");
    runtime.release();
    held.iter_mut().for_each(|connection| drop(connection.response().completion()));
    runtime.set_behaviour(Behaviour::Echo);
    service.chat(&greedy, "hello").completion();

    let refused = service.rows().iter().filter(|row| row["status"] == 503).count();
    assert_eq!(refused, 5, "refusals with a key are recorded");
}

#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let large = Request::chat(&service.key(), vec![b' '; 4 << 20]);
    for (what, request, code) in [
        ("401", large.clone().header("Authorization", "Bearer x"), "invalid_api_key"),
        ("401, chunked", large.clone().header("Authorization", "Bearer x").chunked(5_000), "invalid_api_key"),
        ("404", large.clone().target("/"), "not_found"),
        ("413", large.clone(), "payload_too_large"),
        ("413, chunked", large.clone().chunked(5_000), "payload_too_large"),
    ] {
        // The whole body is sent before the response is read, as simple clients do.
        let response = service.connect().send(request.bytes()).response();
        assert_eq!(response.error().code, code, "{what}");
    }
    // With a `Content-Length` the connection can be used again.
    let mut connection = service.connect();
    connection.send(large.bytes()).response().expect_error("payload_too_large");
    connection.send(large.body(chat_body("hello")).bytes()).response().completion();
}

#[test]
fn a_refusal_reaches_a_client_that_never_stops_sending() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    for (key, code) in [("nonsense", "invalid_api_key"), (key.as_str(), "payload_too_large")] {
        let head = Request::chat(key, "").chunked(1).head();
        let mut connection = service.connect();
        let mut sender = connection.second_handle();
        let endless = thread::spawn(move || {
            let chunk = [b"10000\r\n", vec![b' '; 0x10000].as_slice(), b"\r\n"].concat();
            let mut sent = 0;
            sender.send(head);
            while sender.send_while_open(&chunk) {
                sent += chunk.len();
                assert!(sent < 1 << 30, "a gigabyte was drained");
            }
        });
        connection.response().expect_error(code);
        endless.join().unwrap();
    }
}

#[test]
fn continue_is_sent_only_once_the_key_is_accepted() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (key, weak) = (service.key(), service.key_with("weak", &["--without-completions"]));
    let request = Request::chat(&key, chat_body("hello")).header("Expect", "100-continue");
    for request in [request.clone(), request.clone().chunked(9), request.clone().header("Expect", "100-Continue")] {
        let (head, bytes) = (request.head(), request.bytes());
        let mut connection = service.connect();
        let invited = connection.send(&head).response();
        assert_eq!((invited.status, invited.body.len()), (100, 0), "{invited:?}");
        connection.send(&bytes[head.len()..]).response().completion();
    }
    let asked = runtime.requests().len();
    for (request, code) in [
        (request.clone().header("Authorization", "Bearer x"), "invalid_api_key"),
        (request.clone().header("Authorization", &format!("Bearer {weak}")), "insufficient_permission"),
        (request.clone().target("/"), "not_found"),
        (request.clone().header("Host", "example.com"), "not_found"),
        (request.clone().body(vec![b' '; 262_145]), "payload_too_large"),
    ] {
        // Only the head is sent: the next response is the error, not `100 Continue`.
        let mut connection = service.connect();
        connection.send(request.head()).response().expect_error(code);
        // An uninvited body is not read as a request either.
        let uninvited = Request::chat(&key, chat_body("smuggled")).bytes();
        connection.send_while_open(uninvited);
        assert!(connection.try_response().is_none());
    }
    assert_eq!(runtime.requests().len(), asked);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let runtime = FakeRuntime::start(Behaviour::EchoAfter(Duration::from_millis(20)));
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let mut connection = service.connect();
    let contents: Vec<_> = (0..12).map(|number| format!("number {number}")).collect();
    let requests = contents.iter().map(|content| {
        // Errors in between keep their order, too.
        let refused = Request::chat("nonsense", chat_body("refused")).bytes();
        [Request::chat(&key, chat_body(content)).bytes(), refused].concat()
    });
    connection.send(requests.collect::<Vec<_>>().concat());
    for content in &contents {
        assert_eq!(connection.response().completion().content, *content);
        connection.response().expect_error("invalid_api_key");
    }
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let request = Request::chat(&service.key(), chat_body("hello"));
    for bytes in [request.bytes(), request.chunked(3).bytes()] {
        let mut connection = service.connect();
        for byte in bytes.chunks(1) {
            connection.send(byte);
        }
        connection.response().completion();
    }
}

#[test]
fn a_client_that_requests_a_close_gets_its_response_and_the_close() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let mut connection = service.connect();
    let request = Request::chat(&service.key(), chat_body("hello")).header("Connection", "close");
    connection.send(request.bytes()).response().completion();
    connection.assert_closed();
}

/// Connections are limited by the file descriptors, too: some are needed for the runtimes.
#[test]
fn few_file_descriptors_mean_fewer_connections_not_failing_requests() {
    let runtime = echoing();
    let mut installation = ADRIATICUM.install();
    installation.set("runtime.urls", &runtime.url());
    let key = installation.key();
    let serve = installation.command(&["serve"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64 && exec \"$0\" serve"]).arg(serve.get_program());
    limited.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(installation.folder());
    let service = Service::start_as(installation, &mut limited);
    let request = Request::chat(&key, chat_body("hello")).bytes();
    let mut inside: Vec<_> = (0..100).map(|_| service.connect()).collect();
    let mut completed = 0;
    for connection in &mut inside {
        if connection.send_while_open(&request) {
            match connection.try_response().map(|response| response.outcome()) {
                Some((200, None)) => completed += 1,
                None | Some((503, _)) => {}
                other => panic!("{other:?} after {completed} completions"),
            }
        }
    }
    assert!(completed > 0);
    drop(inside);
    wait_for("service for all", || (service.chat(&key, "hello").status == 200).then_some(()));
}

#[test]
fn silent_connections_do_not_delay_others() {
    let runtime = echoing();
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let mut silent = Vec::new();
    for number in 0..200 {
        let mut connection = service.connect();
        connection.send(&b"POST /v1/chat"[..number % 13]);
        silent.push(connection);
    }
    let began = Instant::now();
    service.chat(&key, "hello").completion();
    assert!(began.elapsed() < MAX_TIMEOUT);
}

#[test]
fn only_the_configured_address_listens() {
    let service = ADRIATICUM.service().start();
    let elsewhere = (Ipv4Addr::new(127, 0, 0, 9), service.address().port());
    let refused = std::net::TcpStream::connect(elsewhere).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}
