//! A fake runtime: a server with OpenAI's API whose behaviour a test sets, and which records its requests.

use std::io::{BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{TIMEOUT, read_request};

/// How often a waiting runtime checks whether its client has disconnected.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const DRIP_INTERVAL: Duration = Duration::from_millis(20);

/// What a fake runtime does with a request.
#[derive(Debug, Clone)]
pub enum Behaviour {
    /// Responds with that status and body.
    Respond(u16, String),
    /// Responds with that status, body and `Retry-After` in seconds.
    RespondRetryAfter(u16, String, u64),
    /// Completes by repeating the last message, and measures 3, 4 and 7 tokens.
    Echo,
    /// Responds with the status and body that the last message consists of. Echoes any other message.
    RespondAsTold,
    /// Echoes, but only after that time.
    EchoAfter(Duration),
    /// Echoes once the test calls `release`.
    EchoWhenReleased,
    /// Echoes, then closes the connection without announcing it.
    EchoThenClose,
    /// Echoes twice: the second response is spare.
    EchoTwice,
    /// Starts a response, sends single bytes at intervals, and never ends it.
    Drip,
    /// Sends an interim response, and then nothing.
    InterimThenHang,
    /// Never responds.
    Hang,
    /// Closes the connection without a response.
    Close,
    /// Closes the connection within the response's body.
    CloseInBody,
    /// Closes the connection within the response's head.
    CloseInHead,
}

impl Behaviour {
    /// A completion of that text with this `usage`; `None` leaves the member out.
    pub fn completion(text: &str, finish_reason: &str, usage: Option<Value>) -> Self {
        let message = json!({ "role": "assistant", "content": text });
        let choice = json!({ "index": 0, "message": message, "finish_reason": finish_reason, "logprobs": null });
        let mut body = json!({ "id": "cmpl-7", "object": "chat.completion", "model": "m", "choices": [choice] });
        if let Some(usage) = usage {
            body["usage"] = usage;
        }
        Self::Respond(200, body.to_string())
    }
}

/// The URL of a runtime that does not exist. No test ever listens on this address.
pub fn unreachable_url() -> String {
    let listener = TcpListener::bind("127.0.0.77:0").unwrap();
    format!("http://{}/v1", listener.local_addr().unwrap())
}

/// Listens for as long as the tests run: a thread per connection, each ended by its client.
pub struct FakeRuntime {
    address: SocketAddr,
    script: Arc<Script>,
}

#[derive(Default)]
struct Script {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    behaviour: Behaviour,
    health_behaviour: Behaviour,
    requests: Vec<Value>,
    heads: Vec<String>,
    disconnects: usize,
    releases: usize,
}

impl Default for State {
    fn default() -> Self {
        let health_behaviour = Behaviour::Respond(200, json!({ "data": [{ "id": "scripted" }] }).to_string());
        Self {
            behaviour: Behaviour::Echo,
            health_behaviour,
            requests: Vec::new(),
            heads: Vec::new(),
            disconnects: 0,
            releases: 0,
        }
    }
}

impl FakeRuntime {
    /// A runtime with that behaviour, on its own port.
    pub fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let runtime = Self { address: listener.local_addr().unwrap(), script: Arc::default() };
        runtime.set_behaviour(behaviour);
        let script = runtime.script.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let script = script.clone();
                std::thread::spawn(move || script.serve(socket));
            }
        });
        runtime
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the responses to completion requests.
    pub fn set_behaviour(&self, behaviour: Behaviour) {
        self.script.state().behaviour = behaviour;
    }

    pub fn behaviour(&self) -> Behaviour {
        self.script.state().behaviour.clone()
    }

    /// Changes the responses to health checks and all other requests except completions.
    pub fn set_health_behaviour(&self, behaviour: Behaviour) {
        self.script.state().health_behaviour = behaviour;
    }

    /// The bodies of the completion requests so far, in order.
    pub fn requests(&self) -> Vec<Value> {
        self.script.state().requests.clone()
    }

    /// The request line and headers of all requests.
    pub fn heads(&self) -> Vec<String> {
        self.script.state().heads.clone()
    }

    /// Drops the recorded requests, for tests that run for hours.
    pub fn forget(&self) {
        let mut state = self.script.state();
        state.requests = Vec::new();
        state.heads = Vec::new();
    }

    /// Waits until there were that many completion requests.
    pub fn wait_for_requests(&self, count: usize) {
        self.script.wait_until("sent the requests", |state| state.requests.len() >= count);
    }

    /// Waits until clients have closed that many connections instead of waiting for a response.
    pub fn wait_for_disconnects(&self, count: usize) {
        self.script.wait_until("disconnected from", |state| state.disconnects >= count);
    }

    /// Responds to the requests that were held.
    pub fn release(&self) {
        self.script.state().releases += 1;
    }
}

impl Script {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn wait_until(&self, what: &str, happened: impl Fn(&State) -> bool) {
        let (_state, waited) =
            self.changed.wait_timeout_while(self.state(), TIMEOUT, |state| !happened(state)).unwrap();
        assert!(!waited.timed_out(), "the runtime was not {what} in time");
    }

    fn serve(&self, socket: TcpStream) {
        let mut reader = BufReader::new(socket.try_clone().unwrap());
        while let Some((head, body)) = read_request(&mut reader) {
            let (behaviour, releases) = {
                let mut state = self.state();
                let is_completion = head.starts_with("POST /v1/chat/completions ");
                state.heads.push(head);
                let behaviour = if is_completion {
                    state.requests.push(serde_json::from_slice(&body).unwrap());
                    state.behaviour.clone()
                } else {
                    state.health_behaviour.clone()
                };
                (behaviour, state.releases)
            };
            self.changed.notify_all();
            if self.perform(&socket, &behaviour, releases, &body).is_none() {
                let _ = socket.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }

    /// Executes a behaviour; `None` if that ends the connection.
    fn perform(&self, mut socket: &TcpStream, behaviour: &Behaviour, releases: usize, body: &[u8]) -> Option<()> {
        let (status, body) = match behaviour {
            Behaviour::RespondRetryAfter(status, body, seconds) => {
                let later = format!("\r\nRetry-After: {seconds}\r\nContent-Type: ");
                let response = String::from_utf8(response(*status, body)).unwrap();
                return socket.write_all(response.replacen("\r\nContent-Type: ", &later, 1).as_bytes()).ok();
            }
            Behaviour::Respond(status, body) => (*status, body.clone()),
            Behaviour::Echo => (200, echo(body)),
            Behaviour::RespondAsTold => {
                let message = last_message(body);
                let order = message.split_once(' ').and_then(|(status, body)| Some((status.parse().ok()?, body)));
                order.map_or_else(|| (200, echo(body)), |(status, body)| (status, body.to_owned()))
            }
            Behaviour::EchoAfter(time) => {
                let until = Instant::now() + *time;
                self.wait(socket, || Instant::now() >= until)?;
                (200, echo(body))
            }
            Behaviour::EchoWhenReleased => {
                self.wait(socket, || self.state().releases > releases)?;
                (200, echo(body))
            }
            Behaviour::Hang | Behaviour::InterimThenHang => {
                if let Behaviour::InterimThenHang = behaviour {
                    socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
                }
                self.wait(socket, || false)?;
                return None;
            }
            Behaviour::Drip => {
                socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").ok()?;
                while socket.write_all(b" ").is_ok() {
                    let waited = Instant::now() + DRIP_INTERVAL;
                    self.wait(socket, || Instant::now() >= waited)?;
                }
                return None;
            }
            Behaviour::EchoThenClose => {
                let _ = socket.write_all(&response(200, &echo(body)));
                return None;
            }
            Behaviour::EchoTwice => {
                socket.write_all(&response(200, &echo(body))).ok()?;
                (200, echo(body))
            }
            Behaviour::Close => return None,
            Behaviour::CloseInHead => {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Ty");
                return None;
            }
            Behaviour::CloseInBody => {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"choices\":[{");
                return None;
            }
        };
        socket.write_all(&response(status, &body)).ok()
    }

    /// Waits for an event; `None` if the client disconnects before.
    fn wait(&self, socket: &TcpStream, happened: impl Fn() -> bool) -> Option<()> {
        socket.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
        while !happened() {
            match socket.peek(&mut [0]) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                }
                _closed => {
                    self.state().disconnects += 1;
                    self.changed.notify_all();
                    return None;
                }
            }
        }
        socket.set_read_timeout(None).unwrap();
        Some(())
    }
}

fn response(status: u16, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into()
}

fn last_message(request: &[u8]) -> String {
    let request: Value = serde_json::from_slice(request).unwrap();
    let last = request["messages"].as_array().and_then(|messages| messages.last()).unwrap();
    last["content"].as_str().unwrap().to_owned()
}

/// A completion that repeats the last message.
fn echo(request: &[u8]) -> String {
    let usage = json!({ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 });
    match Behaviour::completion(&last_message(request), "stop", Some(usage)) {
        Behaviour::Respond(_, body) => body,
        other => unreachable!("{other:?}"),
    }
}
