//! The engine as a separate process, over its own HTTP API.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{Connection, Conversation, Installation, Program, Request, TIMEOUT};

/// An engine that listens on a port.
pub struct Engine {
    child: Child,
    url: String,
    installation: Installation,
}

/// A completion as the engine sends it.
#[derive(Debug)]
pub struct EngineCompletion {
    pub content: String,
    pub finish_reason: String,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Tokens of the prompt that were in the cache.
    pub cached_tokens: u64,
}

/// What the engine reports about itself.
#[derive(Debug)]
pub struct EngineStatus(Value);

impl Engine {
    pub fn start(program: Program) -> Self {
        Self::start_at(program, "127.0.0.1:0")
    }

    /// Starts it on an address, or on a socket in its own folder.
    pub fn start_at(program: Program, address: &str) -> Self {
        Self::serve(program, program.default_model(), address)
    }

    /// Starts it with another model of the default one's shape, which needs no tuning.
    pub fn serving(program: Program, model: &Path) -> Self {
        Self::serve(program, model, "127.0.0.1:0")
    }

    fn serve(program: Program, model: &Path, address: &str) -> Self {
        let mut installation = program.install();
        installation.set("engine.cells", "12288");
        // The machine may be busy.
        installation.set("engine.wait", "9m");
        installation.use_cached_tuning();
        let file = model.to_str().unwrap();
        let mut command = installation.command(&["engine", "--model", file, "--listen", address]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim_end().rsplit_once(" is served at ").map(|(_, url)| url.to_owned());
        Self { child, url: url.unwrap_or_else(|| panic!("no URL in {line:?}")), installation }
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The folder that it runs in.
    pub fn folder(&self) -> &Path {
        self.installation.folder()
    }

    /// Stops it and waits for its end; its folder is kept.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.installation.program().wait_for("the engine's exit", || self.child.try_wait().unwrap())
    }

    pub fn connect(&self) -> Connection {
        let address = self.url.strip_prefix("http://").and_then(|url| url.strip_suffix("/v1"));
        let address: SocketAddr = address.unwrap_or_else(|| panic!("{}", self.url)).parse().unwrap();
        Connection::connect(address).with_timeout(self.installation.program().timeout())
    }

    /// The completion of a conversation.
    pub fn complete(&self, chat: &Conversation) -> EngineCompletion {
        let response = self.connect().send(Request::chat("any", chat.body()).bytes()).response();
        let body = response.json();
        assert_eq!(response.status, 200, "{body}");
        let (choice, usage) = (&body["choices"][0], &body["usage"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        EngineCompletion {
            content: text(&choice["message"]["content"]),
            finish_reason: text(&choice["finish_reason"]),
            prompt_tokens: usage["prompt_tokens"].as_u64().unwrap(),
            completion_tokens: usage["completion_tokens"].as_u64().unwrap(),
            cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        }
    }

    pub fn status(&self) -> EngineStatus {
        let response = self.connect().send("GET /status HTTP/1.1\r\nHost: engine\r\n\r\n").response();
        EngineStatus(response.json())
    }

    /// Waits until the status satisfies a condition.
    pub fn wait_for_status(&self, what: &str, wanted: impl Fn(&EngineStatus) -> bool) -> EngineStatus {
        self.installation.program().wait_for(what, || Some(self.status()).filter(&wanted))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl EngineStatus {
    /// The status of the engine behind a socket, if there is one.
    pub fn over_socket(path: &Path) -> Option<Self> {
        let mut socket = UnixStream::connect(path).ok()?;
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.write_all(b"GET /status HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n").ok()?;
        let mut response = String::new();
        socket.read_to_string(&mut response).ok()?;
        serde_json::from_str(response.split_once("\r\n\r\n")?.1).ok().map(Self)
    }

    pub fn is_idle(&self) -> bool {
        self.get("running") == 0 && self.get("waiting") == 0
    }

    pub fn get(&self, figure: &str) -> u64 {
        self.0[figure].as_u64().unwrap_or_else(|| panic!("{figure}: {}", self.0))
    }
}
