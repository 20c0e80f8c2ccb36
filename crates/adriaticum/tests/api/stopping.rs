//! Stopping in good order: what runs is finished, no row is lost, and nobody has to wait for ever.

use std::collections::HashSet;
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Http2, Reply, Request, Runtime, Service, Setup, ask, eventually};

/// Waits until the service has heard: nobody new gets in.
fn wait_until_closed_to_newcomers(service: &Service) {
    eventually("the listener's end", || TcpStream::connect(service.address()).is_err().then_some(()));
}

#[test]
fn a_signal_lets_what_runs_finish() {
    for signal in [Signal::TERM, Signal::INT] {
        let runtime = Runtime::that(Reply::EchoesOnceReleased);
        let mut service = Setup::with(&[&runtime]).start();
        let key = service.key();
        let mut idle = service.connect();
        idle.send(Request::chat("nonsense", "").bytes()).answer().refused();
        let mut under_way: Vec<_> = (0..3).map(|_| service.connect()).collect();
        for connection in &mut under_way {
            connection.send(Request::chat(&key, ask("hello")).bytes());
        }
        let client = Http2::to(service.address());
        let last = thread::spawn({
            let request = Http2::request(&key, ask("hello"));
            move || client.send(vec![request])
        });
        runtime.wait_until_asked(4);

        service.signal(signal);
        idle.assert_closed();
        wait_until_closed_to_newcomers(&service);
        runtime.release();
        let mut ids: Vec<_> = under_way.iter_mut().map(|connection| connection.answer().completed().id).collect();
        under_way.iter_mut().for_each(|connection| connection.assert_closed());
        ids.push(last.join().unwrap()[0].completed().id);
        assert_eq!(service.wait_for_exit().code(), Some(0), "{signal:?}");

        ids.sort_unstable_by(|one, other| other.cmp(one));
        let rows = service.rows();
        assert_eq!(rows.iter().map(|row| row["request_id"].as_str().unwrap()).collect::<Vec<_>>(), ids);
        assert!(rows.iter().all(|row| row["status"] == 200), "{rows:?}");
    }
}

#[test]
fn a_stop_under_load_loses_no_row() {
    let runtime = Runtime::that(Reply::Echoes);
    let mut service = Setup::with(&[&runtime]).start();
    let key = service.key();
    let acknowledged = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            let mut connection = service.connect();
            let (acknowledged, request) = (&acknowledged, Request::chat(&key, ask("hello")).bytes());
            scope.spawn(move || {
                while connection.send_while_open(&request) {
                    let Some(answer) = connection.answer_if_any() else { break };
                    acknowledged.lock().unwrap().push(answer.completed().id);
                }
            });
        }
        eventually("load", || (acknowledged.lock().unwrap().len() > 50).then_some(()));
        service.signal(Signal::TERM);
    });
    assert_eq!(service.wait_for_exit().code(), Some(0));
    let rows = service.rows();
    let recorded: HashSet<_> = rows.iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(recorded.len(), rows.len());
    let acknowledged = acknowledged.into_inner().unwrap();
    let lost: Vec<_> = acknowledged.iter().filter(|id| !recorded.contains(*id)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(service.sums()["requests"], rows.len());
}

#[test]
fn what_takes_longer_than_the_stop_may_is_cut_off_and_recorded() {
    let runtime = Runtime::that(Reply::Hangs);
    let mut service = Setup::with(&[&runtime]).set("api.stop_timeout", "300ms").start();
    let key = service.key();
    let mut caller = service.connect();
    caller.send(Request::chat(&key, ask("hello")).bytes());
    runtime.wait_until_asked(1);
    let began = Instant::now();
    service.signal(Signal::TERM);
    assert!(caller.answer_if_any().is_none_or(|answer| answer.refused().code == "service_unavailable"));
    assert_eq!(service.wait_for_exit().code(), Some(0));
    assert!((Duration::from_millis(290)..Duration::from_secs(10)).contains(&began.elapsed()), "{:?}", began.elapsed());
    runtime.wait_for_hang_ups(1);
    let rows = service.rows();
    assert_eq!(rows.len(), 1, "{rows:?}");
    // It was us who ended it, not its caller.
    assert_eq!((&rows[0]["status"], &rows[0]["code"]), (&503.into(), &"service_unavailable".into()));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for signals in [[Signal::TERM, Signal::TERM], [Signal::TERM, Signal::INT], [Signal::INT, Signal::INT]] {
        let runtime = Runtime::that(Reply::Hangs);
        let mut service = Setup::with(&[&runtime]).set("api.stop_timeout", "10m").start();
        let mut caller = service.connect();
        caller.send(Request::chat(&service.key(), ask("hello")).bytes());
        runtime.wait_until_asked(1);
        service.signal(signals[0]);
        wait_until_closed_to_newcomers(&service);
        // Two of a kind may arrive as one, so this one is sent as an impatient person would: again and again.
        let status = eventually("the end", || {
            service.signal(signals[1]);
            service.exit_status()
        });
        assert_eq!(status.code(), Some(130), "{signals:?}");
        assert!(caller.answer_if_any().is_none());
    }
}

#[test]
fn a_half_sent_request_does_not_hold_up_the_stop() {
    let mut service = Setup::new().set("api.stop_timeout", "500ms").start();
    let request = Request::chat(&service.key(), ask("hello")).bytes();
    let mut waiting: Vec<_> = [0, 1, 30, request.len() - 5]
        .map(|sent| {
            let mut connection = service.connect();
            connection.send(&request[..sent]);
            connection
        })
        .into();
    service.signal(Signal::TERM);
    assert_eq!(service.wait_for_exit().code(), Some(0));
    waiting.iter_mut().for_each(|connection| drop(connection.rest()));
}
