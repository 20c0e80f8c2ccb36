//! The users of a service: well-behaved and hostile callers, people at the console, an operator; and runtimes that fail
//! at times. Each runs until `over` is set.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testbed::{
    Behaviour, Conversation, FakeRuntime, Http2Client, Request, Service, Visitor, all_at_once, chat_body, words,
};

/// The longest pause between two requests of a caller.
const MAX_PAUSE_MILLIS: u64 = 40;
/// The longest pause before a request to the embedded model. Longer, because the model itself keeps the machine busy.
const MAX_MODEL_PAUSE_MILLIS: u64 = 1_000;
/// How long a runtime misbehaves, and how long it then behaves.
const DISTURBANCE: Duration = Duration::from_millis(400);
/// Sign-ins with a wrong password at the same time.
const SIGN_IN_BURST: usize = 40;
const IDLE_CONNECTIONS: usize = 100;

/// What callers saw in a life of the service.
#[derive(Default)]
pub(crate) struct Observations {
    /// Id and status of every response to a request with a valid key.
    pub(crate) acknowledged: Mutex<Vec<(String, u16)>>,
    /// Of the well-behaved callers, in the current round.
    pub(crate) latencies: Mutex<Vec<Duration>>,
    pub(crate) hang_ups: AtomicUsize,
    pub(crate) refused_sign_ins: AtomicUsize,
    pub(crate) revocations: AtomicUsize,
}

impl Observations {
    fn acknowledge(&self, id: Option<&str>, status: u16) {
        let id = id.expect("every response has an id").to_owned();
        self.acknowledged.lock().unwrap().push((id, status));
    }
}

pub(crate) struct Crowd<'a> {
    pub(crate) service: &'a Service,
    pub(crate) observed: &'a Observations,
    pub(crate) over: &'a AtomicBool,
}

impl Crowd<'_> {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn pause(&self, rng: &mut fastrand::Rng) {
        thread::sleep(Duration::from_millis(rng.u64(..MAX_PAUSE_MILLIS)));
    }

    /// Ordinary requests on a kept connection. The service may be killed meanwhile.
    pub(crate) fn behave(&self, key: &str, mut rng: fastrand::Rng) {
        while self.goes_on() {
            let Some(mut connection) = testbed::Connection::try_connect(self.service.address()) else { return };
            for _ in 0..rng.usize(1..200) {
                let request = ordinary_request(key, &mut rng);
                let began = Instant::now();
                if !self.goes_on() || !connection.send_while_open(request) {
                    break;
                }
                let Some(response) = connection.try_response() else { break };
                self.observed.latencies.lock().unwrap().push(began.elapsed());
                self.observed.acknowledge(response.header("x-request-id"), response.status);
                self.pause(&mut rng);
            }
        }
    }

    /// Invalid and malformed requests, and connections that are closed at any time.
    pub(crate) fn misbehave(&self, key: &str, mut rng: fastrand::Rng) {
        while self.goes_on() {
            match rng.u8(..7) {
                0 => self.expect_status(Request::chat(key, "{"), 400),
                1 => self.expect_status(Request::chat(key, vec![b' '; 300_000]), 413),
                2 => assert_eq!(self.service.chat("adria_nobody", "hello").status, 401),
                3 => self.hang_up(key, &mut rng),
                4 => {
                    let client = Http2Client::connect(self.service.address());
                    let requests = (0..8).map(|_| Http2Client::request(key, chat_body("hello")));
                    for response in client.send(requests.collect()) {
                        self.observed.acknowledge(response.header("x-request-id"), response.status);
                    }
                }
                5 => {
                    let idle: Vec<_> = (0..IDLE_CONNECTIONS)
                        .filter_map(|_| testbed::Connection::try_connect(self.service.address()))
                        .collect();
                    self.pause(&mut rng);
                    drop(idle);
                }
                _ => {
                    let body = chat_body(&"<b>".repeat(20_000));
                    let response = self.service.send(&Request::chat(key, body).chunked(1_000));
                    self.observed.acknowledge(response.header("x-request-id"), response.status);
                }
            }
            self.pause(&mut rng);
        }
    }

    fn expect_status(&self, request: Request, status: u16) {
        let response = self.service.send(&request);
        assert!([status, 503].contains(&response.status), "{response:?}");
        self.observed.acknowledge(response.header("x-request-id"), response.status);
    }

    /// Sends a part of a request, or all of it, and disconnects.
    fn hang_up(&self, key: &str, rng: &mut fastrand::Rng) {
        let bytes = ordinary_request(key, rng);
        let sent = if rng.bool() { bytes.len() } else { rng.usize(..bytes.len()) };
        let mut connection = self.service.connect();
        connection.send_while_open(&bytes[..sent]);
        thread::sleep(Duration::from_micros(rng.u64(..3_000)));
        self.observed.hang_ups.fetch_add(1, Ordering::Relaxed);
    }

    /// A person who reads the console, and visitors who guess passwords.
    pub(crate) fn visit(&self, administrator: &Mutex<Visitor>, mut rng: fastrand::Rng) {
        const PAGES: [&str; 7] =
            ["/", "/keys", "/usage?range=30d", "/usage.csv", "/requests", "/requests.csv?limit=1000", "/audit"];
        let mut person = administrator.lock().unwrap();
        while self.goes_on() {
            for _ in 0..rng.usize(5..20) {
                let page = PAGES[rng.usize(..PAGES.len())];
                let response = person.get(page);
                assert_eq!(response.status, 200, "{page}: {response:?}");
                self.pause(&mut rng);
            }
            let guesses: Vec<_> = (0..SIGN_IN_BURST).collect();
            all_at_once(&guesses, |guess| {
                let mut visitor = Visitor::anonymous(self.service);
                let response = visitor.try_password(&format!("nobody-{guess}@example.com"), "a wrong password");
                assert!([401, 429].contains(&response.status), "{response:?}");
                self.observed.refused_sign_ins.fetch_add(1, Ordering::Relaxed);
            });
        }
    }

    /// Creates and revokes keys: the very next request with a revoked key is refused.
    pub(crate) fn operate(&self, mut rng: fastrand::Rng) {
        while self.goes_on() {
            let key = self.service.key_with("short-lived", &[]);
            let response = self.service.chat(&key, "hello");
            self.observed.acknowledge(response.header("x-request-id"), response.status);
            let id = &key["adria_".len()..][..12];
            self.service.run_ok(&["keys", "revoke", id]);
            assert_eq!(self.service.chat(&key, "hello").status, 401, "{id} is revoked");
            self.observed.revocations.fetch_add(1, Ordering::Relaxed);
            assert_eq!(self.service.get_ops("/healthz").0, 200);
            assert!(self.service.get_ops("/metrics").1.contains("adriaticum_requests_in_flight"));
            thread::sleep(Duration::from_millis(rng.u64(..2_000)));
        }
    }

    /// One runtime at a time misbehaves for a while.
    pub(crate) fn disturb(&self, runtimes: &[FakeRuntime], mut rng: fastrand::Rng) {
        while self.goes_on() {
            let runtime = &runtimes[rng.usize(..runtimes.len())];
            runtime.set_behaviour(match rng.u8(..6) {
                0 => Behaviour::Close,
                1 => Behaviour::CloseInBody,
                2 => Behaviour::Respond(500, "{}".into()),
                3 => Behaviour::Respond(200, "{\"choices\":".into()),
                4 => Behaviour::EchoAfter(Duration::from_millis(rng.u64(..300))),
                _ => Behaviour::EchoThenClose,
            });
            thread::sleep(DISTURBANCE);
            runtime.set_behaviour(Behaviour::Echo);
            thread::sleep(DISTURBANCE);
        }
    }

    /// Requests to an embedded model, some larger than its context, some abandoned.
    pub(crate) fn converse(&self, key: &str, mut rng: fastrand::Rng) {
        while self.goes_on() {
            thread::sleep(Duration::from_millis(rng.u64(..MAX_MODEL_PAUSE_MILLIS)));
            let asked = words(rng.usize(5..60), rng.usize(..50));
            let request = match rng.u8(..8) {
                0 => Request::chat(key, Conversation::user(words(12_000, 1)).body()),
                1 => {
                    let mut connection = self.service.connect();
                    connection.send(Request::chat(key, Conversation::endless().body()).bytes());
                    self.pause(&mut rng);
                    self.observed.hang_ups.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                _ => Request::chat(key, Conversation::system(words(80, 7)).then_user(asked).body()),
            };
            let response = self.service.send(&request);
            assert!([200, 400, 503].contains(&response.status), "{response:?}");
            self.observed.acknowledge(response.header("x-request-id"), response.status);
        }
    }
}

/// A valid request: short or long, one turn or several, a question of facts or not.
fn ordinary_request(key: &str, rng: &mut fastrand::Rng) -> Vec<u8> {
    let content = match rng.u8(..10) {
        0 => words(4_000, rng.usize(..100)),
        1 => "Who won the election in Italy yesterday?".to_owned(),
        2 => "What is the current population of Dubrovnik?".to_owned(),
        _ => words(rng.usize(3..60), rng.usize(..100)),
    };
    let conversation = match rng.u8(..3) {
        0 => Conversation::system("You are brief.").then_user("Hello").then_assistant("Hello!").then_user(content),
        _ => Conversation::user(content),
    };
    Request::chat(key, conversation.body()).bytes()
}
