//! Graceful stop: requests in flight finish, no row is lost, and the stop takes a limited time.

use std::collections::HashSet;
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testbed::{Behaviour, FakeRuntime, Http2Client, Request, Service, chat_body, wait_for};

use crate::ADRIATICUM;

/// Waits until the service refuses new connections.
fn wait_until_closed_to_new_connections(service: &Service) {
    wait_for("the listener's end", || TcpStream::connect(service.address()).is_err().then_some(()));
}

#[test]
fn a_signal_lets_requests_in_flight_finish() {
    for signal in [Signal::TERM, Signal::INT] {
        let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
        let mut service = ADRIATICUM.service_with(&[&runtime]).start();
        let key = service.key();
        let mut idle = service.connect();
        idle.send(Request::chat("nonsense", "").bytes()).response().error();
        let mut under_way: Vec<_> = (0..3).map(|_| service.connect()).collect();
        for connection in &mut under_way {
            connection.send(Request::chat(&key, chat_body("hello")).bytes());
        }
        let client = Http2Client::connect(service.address());
        let last = thread::spawn({
            let request = Http2Client::request(&key, chat_body("hello"));
            move || client.send(vec![request])
        });
        runtime.wait_for_requests(4);

        service.signal(signal);
        idle.assert_closed();
        wait_until_closed_to_new_connections(&service);
        runtime.release();
        let mut ids: Vec<_> = under_way.iter_mut().map(|connection| connection.response().completion().id).collect();
        under_way.iter_mut().for_each(|connection| connection.assert_closed());
        ids.push(last.join().unwrap()[0].completion().id);
        assert_eq!(service.wait_for_exit().code(), Some(0), "{signal:?}");

        ids.sort_unstable_by(|one, other| other.cmp(one));
        let rows = service.rows();
        assert_eq!(rows.iter().map(|row| row["request_id"].as_str().unwrap()).collect::<Vec<_>>(), ids);
        assert!(rows.iter().all(|row| row["status"] == 200), "{rows:?}");
    }
}

#[test]
fn a_stop_under_load_loses_no_row() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let acknowledged = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            let mut connection = service.connect();
            let (acknowledged, request) = (&acknowledged, Request::chat(&key, chat_body("hello")).bytes());
            scope.spawn(move || {
                while connection.send_while_open(&request) {
                    let Some(response) = connection.try_response() else { break };
                    acknowledged.lock().unwrap().push(response.completion().id);
                }
            });
        }
        wait_for("load", || (acknowledged.lock().unwrap().len() > 50).then_some(()));
        service.signal(Signal::TERM);
    });
    assert_eq!(service.wait_for_exit().code(), Some(0));
    let rows = service.rows();
    let recorded: HashSet<_> = rows.iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(recorded.len(), rows.len());
    let acknowledged = acknowledged.into_inner().unwrap();
    let lost: Vec<_> = acknowledged.iter().filter(|id| !recorded.contains(*id)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(service.usage()["requests"], rows.len());
}

/// Waits until readiness fails.
fn wait_until_unready(service: &Service) {
    wait_for("the end of readiness", || {
        let (status, body) = service.get_ops("/readyz");
        (status == 503 && body.contains("about to stop")).then_some(())
    });
}

#[test]
fn a_draining_service_responds_with_connection_close() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = ADRIATICUM.service_with(&[&runtime]).set("api.drain", "8s").start();
    let request = Request::chat(&service.key(), chat_body("hello")).bytes();
    let http2_request = || Http2Client::request(&service.key(), chat_body("hello"));
    let mut kept: Vec<_> = (0..3).map(|_| service.connect()).collect();
    let mut ids = Vec::new();
    for connection in &mut kept {
        let response = connection.send(&request).response();
        assert_eq!(response.header("connection"), None);
        ids.push(response.completion().id);
    }
    let mut idle = kept.pop().unwrap();
    let http2 = Http2Client::connect(service.address());
    ids.push(http2.send(vec![http2_request()])[0].completion().id);

    let began = Instant::now();
    service.signal(Signal::TERM);
    wait_until_unready(&service);
    assert!(began.elapsed() < Duration::from_secs(4), "immediately, not at the end: {:?}", began.elapsed());
    kept.extend((0..3).map(|_| service.connect()));
    for connection in &mut kept {
        let response = connection.send(&request).response();
        assert_eq!(response.header("connection"), Some("close"));
        ids.push(response.completion().id);
        connection.assert_closed();
    }
    // An HTTP/2 connection is served until the end.
    ids.push(http2.send(vec![http2_request()])[0].completion().id);
    assert!(began.elapsed() < Duration::from_secs(8), "too slow for this test: {:?}", began.elapsed());
    idle.assert_closed();
    assert!(began.elapsed() >= Duration::from_secs(8), "idle connections stay: {:?}", began.elapsed());
    assert_eq!(service.wait_for_exit().code(), Some(0));

    let recorded: HashSet<_> =
        service.rows().iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(recorded, ids.into_iter().collect());
}

/// As a proxy uses them. If this test itself pauses for longer than it may, the trial is repeated.
#[test]
fn kept_connections_are_served_while_they_are_used() {
    const PACE: Duration = Duration::from_millis(30);
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let all_are_served = || {
        let mut service = ADRIATICUM.service_with(&[&runtime]).start();
        let request = Request::chat(&service.key(), chat_body("hello")).bytes();
        let mut kept: Vec<_> = (0..20).map(|_| service.connect()).collect();
        let mut unused = service.connect();
        for connection in kept.iter_mut().chain([&mut unused]) {
            connection.send(&request).response().completion();
        }
        service.signal(Signal::INT);
        let mut last = Instant::now();
        let all_are_served = kept.iter_mut().all(|connection| {
            thread::sleep(PACE);
            let response = connection.send_while_open(&request).then(|| connection.try_response()).flatten();
            let is_served = response.is_some_and(|response| response.status == 200);
            assert!(is_served || last.elapsed() > 4 * PACE, "no response on a connection that was kept open");
            last = Instant::now();
            is_served
        });
        unused.assert_closed();
        assert_eq!(service.wait_for_exit().code(), Some(0));
        all_are_served
    };
    assert!((0..5).any(|_| all_are_served()), "this machine is too slow for this test");
}

#[test]
fn ctrl_c_skips_draining() {
    let mut service = ADRIATICUM.service().set("api.drain", "10m").start();
    service.signal(Signal::INT);
    assert_eq!(service.wait_for_exit().code(), Some(0));
}

#[test]
fn a_second_signal_ends_draining() {
    let mut service = ADRIATICUM.service().set("api.drain", "10m").start();
    service.signal(Signal::TERM);
    wait_until_unready(&service);
    service.signal(Signal::TERM);
    assert_eq!(service.wait_for_exit().code(), Some(130));
}

#[test]
fn health_is_reported_until_the_end() {
    let runtime = FakeRuntime::start(Behaviour::EchoWhenReleased);
    let mut service = ADRIATICUM.service_with(&[&runtime]).start();
    let mut caller = service.connect();
    caller.send(Request::chat(&service.key(), chat_body("hello")).bytes());
    runtime.wait_for_requests(1);
    service.signal(Signal::TERM);
    wait_until_closed_to_new_connections(&service);
    let (status, body) = service.get_ops("/readyz");
    assert!(status == 503 && body.contains("is stopping"), "{body}");
    assert_eq!(service.get_ops("/healthz").0, 200);
    assert!(service.get_ops("/metrics").1.contains("adriaticum_part_ready{part=\"stopping\"} 0"));
    runtime.release();
    caller.response().completion();
    assert_eq!(service.wait_for_exit().code(), Some(0));
    assert!(TcpStream::connect(service.ops_address()).is_err());
}

#[test]
fn requests_beyond_the_stop_timeout_are_aborted_and_recorded() {
    let runtime = FakeRuntime::start(Behaviour::Hang);
    let mut service = ADRIATICUM.service_with(&[&runtime]).set("api.stop_timeout", "300ms").start();
    let key = service.key();
    let mut caller = service.connect();
    caller.send(Request::chat(&key, chat_body("hello")).bytes());
    let over_http2 = Http2Client::connect(service.address());
    let request = Http2Client::request(&key, chat_body("hello"));
    let streamed = std::thread::spawn(move || over_http2.send(vec![request]));
    runtime.wait_for_requests(2);
    let began = Instant::now();
    service.signal(Signal::TERM);
    let refused = caller.response().error();
    assert_eq!((refused.status, refused.code.as_str()), (503, "service_unavailable"));
    assert!(refused.message.contains("stopping"), "{refused:?}");
    let streamed = streamed.join().unwrap();
    assert_eq!(streamed[0].error().code, "service_unavailable", "{streamed:?}");
    assert_eq!(service.wait_for_exit().code(), Some(0));
    assert!((Duration::from_millis(290)..Duration::from_secs(10)).contains(&began.elapsed()), "{:?}", began.elapsed());
    runtime.wait_for_disconnects(2);
    let rows = service.rows();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.iter().any(|row| row["request_id"] == refused.request_id.as_str()), "the answer has the row's id");
    // The service ended them, not their callers.
    for row in rows {
        assert_eq!((&row["status"], &row["code"]), (&503.into(), &"service_unavailable".into()));
    }
}

#[test]
fn a_second_signal_stops_immediately() {
    for signals in [[Signal::TERM, Signal::TERM], [Signal::TERM, Signal::INT], [Signal::INT, Signal::INT]] {
        let runtime = FakeRuntime::start(Behaviour::Hang);
        let mut service = ADRIATICUM.service_with(&[&runtime]).set("api.stop_timeout", "10m").start();
        let mut caller = service.connect();
        caller.send(Request::chat(&service.key(), chat_body("hello")).bytes());
        runtime.wait_for_requests(1);
        service.signal(signals[0]);
        wait_until_closed_to_new_connections(&service);
        // Two equal signals may be merged into one, so this one is sent repeatedly.
        let status = wait_for("the end", || {
            service.signal(signals[1]);
            service.exit_status()
        });
        assert_eq!(status.code(), Some(130), "{signals:?}");
        assert!(caller.try_response().is_none());
    }
}

#[test]
fn a_half_sent_request_does_not_delay_the_stop() {
    let mut service = ADRIATICUM.service().set("api.stop_timeout", "500ms").start();
    let request = Request::chat(&service.key(), chat_body("hello")).bytes();
    let mut waiting: Vec<_> = [0, 1, 30, request.len() - 5]
        .map(|sent| {
            let mut connection = service.connect();
            connection.send(&request[..sent]);
            connection
        })
        .into();
    service.signal(Signal::TERM);
    assert_eq!(service.wait_for_exit().code(), Some(0));
    waiting.iter_mut().for_each(|connection| drop(connection.read_to_end()));
}
