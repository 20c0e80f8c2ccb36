//! A scripted runtime: an OpenAI-shaped server that does what a test says, and tells what it was asked.

use std::io::{BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{TIMEOUT, read_request};

/// How often a runtime that waits looks around.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const DRIP_EVERY: Duration = Duration::from_millis(20);

/// What a runtime does with a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Answers with that status and body.
    Says(u16, String),
    /// Answers with that status, body and `Retry-After`.
    SaysLater(u16, String, u64),
    /// Completes by repeating the last message, and measures 3, 4 and 7 tokens.
    Echoes,
    /// Answers what the last message says: a status and a body. Echoes what begins otherwise.
    Obeys,
    /// Echoes, but only after that time.
    EchoesAfter(Duration),
    /// Echoes once the test says so.
    EchoesOnceReleased,
    /// Echoes, then closes the connection without having said so.
    EchoesThenCloses,
    /// Begins to answer, a byte now and then, and never gets to the end.
    Drips,
    /// Answers nothing, ever.
    Hangs,
    /// Closes the connection without an answer.
    Closes,
    /// Closes the connection within the answer's body.
    BreaksOff,
    /// Closes the connection within the answer's head.
    BreaksOffInHead,
}

impl Reply {
    /// A completion of that text with whatever stands for `usage`; `None` leaves it out.
    pub fn completion(text: &str, finish_reason: &str, usage: Option<Value>) -> Self {
        let message = json!({ "role": "assistant", "content": text });
        let choice = json!({ "index": 0, "message": message, "finish_reason": finish_reason, "logprobs": null });
        let mut body = json!({ "id": "cmpl-7", "object": "chat.completion", "model": "m", "choices": [choice] });
        if let Some(usage) = usage {
            body["usage"] = usage;
        }
        Self::Says(200, body.to_string())
    }
}

/// The URL of a runtime that is not there. Nothing else of the tests ever listens on this address.
pub fn unreachable_url() -> String {
    let listener = TcpListener::bind("127.0.0.77:0").unwrap();
    format!("http://{}/v1", listener.local_addr().unwrap())
}

/// Listens for as long as the tests run: a thread per connection, each ended by its client.
pub struct Runtime {
    address: SocketAddr,
    stage: Arc<Stage>,
}

#[derive(Default)]
struct Stage {
    play: Mutex<Play>,
    changed: Condvar,
}

struct Play {
    reply: Reply,
    /// To health checks.
    models: Reply,
    asked: Vec<Value>,
    heads: Vec<String>,
    hang_ups: usize,
    releases: usize,
}

impl Default for Play {
    fn default() -> Self {
        let models = Reply::Says(200, json!({ "data": [{ "id": "scripted" }] }).to_string());
        Self { reply: Reply::Echoes, models, asked: Vec::new(), heads: Vec::new(), hang_ups: 0, releases: 0 }
    }
}

impl Runtime {
    /// A runtime that replies so from now on.
    pub fn that(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let runtime = Self { address: listener.local_addr().unwrap(), stage: Arc::default() };
        runtime.now(reply);
        let stage = runtime.stage.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let stage = stage.clone();
                std::thread::spawn(move || stage.serve(socket));
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

    /// Changes the reply to completions.
    pub fn now(&self, reply: Reply) {
        self.stage.play().reply = reply;
    }

    /// The reply to completions.
    pub fn reply(&self) -> Reply {
        self.stage.play().reply.clone()
    }

    /// Changes the reply to health checks.
    pub fn models_now(&self, reply: Reply) {
        self.stage.play().models = reply;
    }

    /// The completions it was asked for, in order.
    pub fn asked(&self) -> Vec<Value> {
        self.stage.play().asked.clone()
    }

    /// The request line and headers of everything it was sent.
    pub fn heads(&self) -> Vec<String> {
        self.stage.play().heads.clone()
    }

    /// Waits until it was asked that often.
    pub fn wait_until_asked(&self, times: usize) {
        self.stage.wait_until("asked", |play| play.asked.len() >= times);
    }

    /// Waits until clients have closed that many connections instead of waiting for an answer.
    pub fn wait_for_hang_ups(&self, times: usize) {
        self.stage.wait_until("hung up on", |play| play.hang_ups >= times);
    }

    /// Lets those that were held until now be answered.
    pub fn release(&self) {
        self.stage.play().releases += 1;
    }
}

impl Stage {
    fn play(&self) -> MutexGuard<'_, Play> {
        self.play.lock().unwrap()
    }

    fn wait_until(&self, what: &str, happened: impl Fn(&Play) -> bool) {
        let (_play, waited) = self.changed.wait_timeout_while(self.play(), TIMEOUT, |play| !happened(play)).unwrap();
        assert!(!waited.timed_out(), "the runtime was not {what} in time");
    }

    fn serve(&self, socket: TcpStream) {
        let mut reader = BufReader::new(socket.try_clone().unwrap());
        while let Some((head, body)) = read_request(&mut reader) {
            let (reply, releases) = {
                let mut play = self.play();
                let is_completion = head.starts_with("POST /v1/chat/completions ");
                play.heads.push(head);
                let reply = if is_completion {
                    play.asked.push(serde_json::from_slice(&body).unwrap());
                    play.reply.clone()
                } else {
                    play.models.clone()
                };
                (reply, play.releases)
            };
            self.changed.notify_all();
            if self.perform(&socket, &reply, releases, &body).is_none() {
                let _ = socket.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }

    /// Does what a reply says; `None` if that ends the connection.
    fn perform(&self, mut socket: &TcpStream, reply: &Reply, releases: usize, body: &[u8]) -> Option<()> {
        let (status, body) = match reply {
            Reply::SaysLater(status, body, seconds) => {
                let later = format!("\r\nRetry-After: {seconds}\r\nContent-Type: ");
                let answer = String::from_utf8(answer(*status, body)).unwrap();
                return socket.write_all(answer.replacen("\r\nContent-Type: ", &later, 1).as_bytes()).ok();
            }
            Reply::Says(status, body) => (*status, body.clone()),
            Reply::Echoes => (200, echo(body)),
            Reply::Obeys => {
                let message = last_message(body);
                let order = message.split_once(' ').and_then(|(status, body)| Some((status.parse().ok()?, body)));
                order.map_or_else(|| (200, echo(body)), |(status, body)| (status, body.to_owned()))
            }
            Reply::EchoesAfter(time) => {
                let until = Instant::now() + *time;
                self.wait(socket, || Instant::now() >= until)?;
                (200, echo(body))
            }
            Reply::EchoesOnceReleased => {
                self.wait(socket, || self.play().releases > releases)?;
                (200, echo(body))
            }
            Reply::Hangs => {
                self.wait(socket, || false)?;
                return None;
            }
            Reply::Drips => {
                socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").ok()?;
                while socket.write_all(b" ").is_ok() {
                    let waited = Instant::now() + DRIP_EVERY;
                    self.wait(socket, || Instant::now() >= waited)?;
                }
                return None;
            }
            Reply::EchoesThenCloses => {
                let _ = socket.write_all(&answer(200, &echo(body)));
                return None;
            }
            Reply::Closes => return None,
            Reply::BreaksOffInHead => {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Ty");
                return None;
            }
            Reply::BreaksOff => {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"choices\":[{");
                return None;
            }
        };
        socket.write_all(&answer(status, &body)).ok()
    }

    /// Waits for something to happen; `None` if the client hangs up before.
    fn wait(&self, socket: &TcpStream, happened: impl Fn() -> bool) -> Option<()> {
        socket.set_read_timeout(Some(LOOK_EVERY)).unwrap();
        while !happened() {
            match socket.peek(&mut [0]) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                }
                _closed => {
                    self.play().hang_ups += 1;
                    self.changed.notify_all();
                    return None;
                }
            }
        }
        socket.set_read_timeout(None).unwrap();
        Some(())
    }
}

fn answer(status: u16, body: &str) -> Vec<u8> {
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
    match Reply::completion(&last_message(request), "stop", Some(usage)) {
        Reply::Says(_, body) => body,
        other => unreachable!("{other:?}"),
    }
}
