//! The service: the real binary, serving an installation.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Answer, Connection, Home, Request, ask};

/// A service to be started.
pub struct Setup(Home);

impl Setup {
    pub(crate) fn new(home: Home) -> Self {
        Self(home)
    }

    pub fn set(mut self, setting: &str, value: &str) -> Self {
        self.0.set(setting, value);
        self
    }

    pub fn data(mut self, data: PathBuf) -> Self {
        self.0.set_data(data);
        self
    }

    /// One more replica over a home's database.
    pub fn beside(mut self, home: &Home) -> Self {
        self.0.set_data(home.data().to_owned());
        match home.setting("database_url") {
            Some(url) => self.set("database_url", &url),
            None => self,
        }
    }

    pub fn start(self) -> Service {
        Service { process: Some(Process::start(&self.0)), home: self.0 }
    }
}

/// A home that is being served, or was until it was stopped.
pub struct Service {
    process: Option<Process>,
    home: Home,
}

impl Deref for Service {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl Service {
    /// A home served by a command of the test's own making.
    pub fn start_as(home: Home, command: &mut Command) -> Self {
        Self { process: Some(Process::spawn(command, &home)), home }
    }

    pub fn address(&self) -> SocketAddr {
        self.process().address
    }

    /// What the service has printed at its start.
    pub fn greeting(&self) -> &str {
        &self.process().greeting
    }

    /// The next line with that in it which the service prints.
    pub fn next_line_with(&mut self, part: &str) -> String {
        let stdout = &mut self.process.as_mut().expect("a running service").stdout;
        let line = stdout.lines().map(Result::unwrap).find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("the service has not printed {part:?}"))
    }

    /// What stands behind a name in the greeting.
    pub fn told(&self, name: &str) -> Option<String> {
        let line = self.greeting().lines().find_map(|line| line.trim().strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    }

    /// Where health and metrics are told.
    pub fn ops(&self) -> SocketAddr {
        self.told("Ops").unwrap().strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// What is told there under a path: status and body.
    pub fn look_at(&self, path: &str) -> (u16, String) {
        let request = Request::chat("", "").without("Authorization").method("GET").target(path);
        let answer = Connection::to(self.ops()).send(request.bytes()).answer();
        (answer.status, String::from_utf8(answer.body).unwrap())
    }

    /// What is typed where the service was started, if the command was given a way for that.
    pub fn typing(&mut self) -> &mut ChildStdin {
        self.process.as_mut().and_then(|process| process.child.stdin.as_mut()).expect("a service with an input")
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process().child)
    }

    pub fn connect(&self) -> Connection {
        Connection::to(self.address()).with_timeout(self.program().timeout())
    }

    /// The answer to bytes on a connection of their own.
    pub fn send_bytes(&self, bytes: &[u8]) -> Answer {
        self.connect().send(bytes).answer()
    }

    /// The answer to a request on a connection of its own.
    pub fn send(&self, request: &Request) -> Answer {
        self.send_bytes(&request.bytes())
    }

    /// The answer to a good request with one message.
    pub fn ask(&self, key: &str, content: &str) -> Answer {
        self.send(&Request::chat(key, ask(content)))
    }

    /// Has the configuration read again, and waits until the log tells of it; gives what it tells.
    pub fn reload(&self) -> String {
        let before = self.log().len();
        self.signal(Signal::HUP);
        self.program().eventually("the configuration being read again", || {
            let log = self.log();
            let told = log.get(before..).filter(|told| told.contains("was read again") && told.ends_with('\n'));
            told.map(str::to_owned)
        })
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// How the process has ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().expect("a service that was not killed").child.try_wait().unwrap()
    }

    /// How the process ends by itself.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        self.program().eventually("the service's exit", || self.exit_status())
    }

    /// Ends the process as a power cut would, as far as the process can tell.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Changes a setting for the next start.
    pub fn set(&mut self, setting: &str, value: &str) {
        self.home.set(setting, value);
    }

    /// Serves the same home again, on a new port.
    pub fn start_again(&mut self) {
        self.process = Some(Process::start(&self.home));
    }

    /// Serves the same home again, by a command of the test's own making.
    pub fn start_again_as(&mut self, command: &mut Command) {
        self.process = Some(Process::spawn(command, &self.home));
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a running service")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the service's log:\n{}", self.log());
        }
    }
}

struct Process {
    child: Child,
    address: SocketAddr,
    /// What it has printed.
    greeting: String,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start(home: &Home) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(home.log_path()).unwrap();
        Self::spawn(home.command(&["serve"]).stderr(log), home)
    }

    /// Starts the service and waits until it says where it listens.
    fn spawn(command: &mut Command, home: &Home) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        while !greeting.contains("\n  Database") {
            if stdout.read_line(&mut greeting).unwrap() == 0 {
                panic!("the service did not start: {}", home.log());
            }
        }
        let (_, address) = greeting.split_once("(listening on ").unwrap();
        let address = address.split_once(')').unwrap().0.parse().unwrap();
        Self { child, address, greeting, stdout }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
