//! The engine on its own, over its own HTTP face, and what it says about itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{Chat, Connection, Home, Program, Request, TIMEOUT};

/// An engine that listens on a port.
pub struct Engine {
    child: Child,
    /// Where it says that it is served.
    place: String,
    home: Home,
}

/// A completion of the engine's own.
#[derive(Debug)]
pub struct Reply {
    pub content: String,
    pub finish_reason: String,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// How much of the prompt was found in the cache.
    pub cached_tokens: u64,
}

/// What an engine says that it is doing.
#[derive(Debug)]
pub struct Status(Value);

impl Engine {
    pub fn start(program: Program) -> Self {
        Self::start_at(program, "127.0.0.1:0")
    }

    /// Starts it at an address, or a socket in its own folder.
    pub fn start_at(program: Program, address: &str) -> Self {
        let mut home = program.home();
        home.set("engine.cells", "12288");
        home.use_cached_tuning();
        let file = program.default_model().to_str().unwrap();
        let mut command = home.command(&["engine", "--model", file, "--listen", address]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim_end().rsplit_once(" is served at ").map(|(_, place)| place.to_owned());
        Self { child, place: place.unwrap_or_else(|| panic!("where it is served: {line:?}")), home }
    }

    /// Where it is served.
    pub fn url(&self) -> String {
        self.place.clone()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The folder that it runs in.
    pub fn folder(&self) -> &Path {
        self.home.folder()
    }

    /// Asks it to stop, and waits until it has; its folder is still there.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.home.program().eventually("the engine's exit", || self.child.try_wait().unwrap())
    }

    pub fn connect(&self) -> Connection {
        let address = self.place.strip_prefix("http://").and_then(|url| url.strip_suffix("/v1"));
        let address: SocketAddr = address.unwrap_or_else(|| panic!("{}", self.place)).parse().unwrap();
        Connection::to(address).with_timeout(self.home.program().timeout())
    }

    /// The answer to a conversation, which must be a completion.
    pub fn chat(&self, chat: &Chat) -> Reply {
        let answer = self.connect().send(Request::chat("any", chat.body()).bytes()).answer();
        let body = answer.json();
        assert_eq!(answer.status, 200, "{body}");
        let (choice, usage) = (&body["choices"][0], &body["usage"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Reply {
            content: text(&choice["message"]["content"]),
            finish_reason: text(&choice["finish_reason"]),
            prompt_tokens: usage["prompt_tokens"].as_u64().unwrap(),
            completion_tokens: usage["completion_tokens"].as_u64().unwrap(),
            cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        }
    }

    pub fn status(&self) -> Status {
        let answer = self.connect().send("GET /status HTTP/1.1\r\nHost: engine\r\n\r\n").answer();
        Status(answer.json())
    }

    /// Waits until the engine's status is as wanted.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        self.home.program().eventually(what, || Some(self.status()).filter(&wanted))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Status {
    /// What the engine behind a socket says; nothing if there is none.
    pub fn over_socket(path: &Path) -> Option<Self> {
        let mut socket = UnixStream::connect(path).ok()?;
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.write_all(b"GET /status HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok().map(Self)
    }

    pub fn is_idle(&self) -> bool {
        self.get("running") == 0 && self.get("waiting") == 0
    }

    pub fn get(&self, figure: &str) -> u64 {
        self.0[figure].as_u64().unwrap_or_else(|| panic!("{figure}: {}", self.0))
    }
}
