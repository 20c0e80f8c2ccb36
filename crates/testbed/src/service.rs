//! The service: the real binary, serving an installation.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Connection, Installation, Request, Response, ShiftedClock, chat_body};

/// A service to be started.
pub struct ServiceBuilder(Installation);

impl ServiceBuilder {
    pub fn new(installation: Installation) -> Self {
        Self(installation)
    }

    pub fn set(mut self, setting: &str, value: &str) -> Self {
        self.0.set(setting, value);
        self
    }

    /// Uses SQLite also where the suite runs on PostgreSQL, for features of SQLite alone.
    pub fn on_sqlite(mut self) -> Self {
        self.0.use_sqlite();
        self
    }

    /// Replaces this machine's clock for the service.
    pub fn clock(mut self, clock: &ShiftedClock) -> Self {
        self.0.set_clock(clock);
        self
    }

    pub fn data(mut self, data: PathBuf) -> Self {
        self.0.set_data(data);
        self
    }

    /// A replica that shares an installation's database.
    pub fn replica_of(mut self, installation: &Installation) -> Self {
        self.0.set_data(installation.data().to_owned());
        match installation.setting("database_url") {
            Some(url) => self.set("database_url", &url),
            None => self,
        }
    }

    pub fn start(self) -> Service {
        Service { process: Some(Process::start(&self.0)), installation: self.0 }
    }
}

/// An installation that is served, or was until it was stopped.
pub struct Service {
    process: Option<Process>,
    installation: Installation,
}

impl Deref for Service {
    type Target = Installation;

    fn deref(&self) -> &Installation {
        &self.installation
    }
}

impl Service {
    /// Serves an installation with the test's own command.
    pub fn start_as(installation: Installation, command: &mut Command) -> Self {
        Self { process: Some(Process::spawn(command, &installation)), installation }
    }

    pub fn address(&self) -> SocketAddr {
        self.process().address
    }

    /// The lines that the service printed when it started.
    pub fn banner(&self) -> &str {
        &self.process().banner
    }

    /// Waits for the next printed line that contains this.
    pub fn next_line_with(&mut self, part: &str) -> String {
        let stdout = &mut self.process.as_mut().expect("a running service").stdout;
        let line = stdout.lines().map(Result::unwrap).find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("the service has not printed {part:?}"))
    }

    /// The value after a label in the banner.
    pub fn banner_value(&self, name: &str) -> Option<String> {
        let line = self.banner().lines().find_map(|line| line.trim().strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    }

    /// A link that creates the first administrator's account.
    pub fn set_up_link(&self) -> String {
        let link = self.run_ok(&["accounts", "set-up"]);
        let (_, token) = link.trim().split_once("/welcome/").expect("a link");
        format!("{}/welcome/{token}", self.banner_value("Console").unwrap())
    }

    /// The address of the ops listener.
    pub fn ops_address(&self) -> SocketAddr {
        self.banner_value("Ops").unwrap().strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// Status and body of a path on the ops listener.
    pub fn get_ops(&self, path: &str) -> (u16, String) {
        let request = Request::chat("", "").without("Authorization").method("GET").target(path);
        let mut connection = Connection::connect(self.ops_address());
        let response = connection.send(request.header("Connection", "close").bytes()).response();
        connection.read_to_end(); // so that it takes no slot from the next one
        (response.status, String::from_utf8(response.body).unwrap())
    }

    /// The standard input, if the command has one.
    pub fn stdin(&mut self) -> &mut ChildStdin {
        self.process.as_mut().and_then(|process| process.child.stdin.as_mut()).expect("a service with an input")
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process().child)
    }

    /// The memory that the process has in use, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The peak of the process's resident memory.
    pub fn peak_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid().as_raw_nonzero());
        let status = std::fs::read_to_string(path).unwrap();
        let kilobytes = status.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next());
        kilobytes.unwrap().parse::<u64>().unwrap() << 10
    }

    /// The address of the console's listener.
    pub fn console_address(&self) -> SocketAddr {
        let (_, line) = self.banner().split_once("Console").unwrap();
        let (_, address) = line.split_once("listening on ").unwrap();
        address.split_once(')').unwrap().0.parse().unwrap()
    }

    /// The value of a metric, by its name with its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (status, text) = self.get_ops("/metrics");
        assert_eq!(status, 200);
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    pub fn connect(&self) -> Connection {
        Connection::connect(self.address()).with_timeout(self.program().timeout())
    }

    /// The response to bytes on a new connection.
    pub fn send_bytes(&self, bytes: &[u8]) -> Response {
        self.connect().send(bytes).response()
    }

    /// The response to a request on a new connection.
    pub fn send(&self, request: &Request) -> Response {
        self.send_bytes(&request.bytes())
    }

    /// The response to a valid request with one message.
    pub fn chat(&self, key: &str, content: &str) -> Response {
        self.send(&Request::chat(key, chat_body(content)))
    }

    /// Sends SIGHUP and waits until the configuration is reloaded; returns the log lines since the signal.
    pub fn reload(&self) -> String {
        let before = self.log().len();
        self.signal(Signal::HUP);
        self.program().wait_for("the configuration being reloaded", || {
            let log = self.log();
            let lines =
                log.get(before..).filter(|lines| lines.contains("configuration was reloaded") && lines.ends_with('\n'));
            lines.map(str::to_owned)
        })
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The exit status, if the process has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().expect("a service that was not killed").child.try_wait().unwrap()
    }

    /// Waits for the process to exit.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        self.program().wait_for("the service's exit", || self.exit_status())
    }

    /// Ends the process with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Changes a setting for the next start.
    pub fn set(&mut self, setting: &str, value: &str) {
        self.installation.set(setting, value);
    }

    /// Gives it, and the commands from now on, this machine's clock again.
    pub fn unset_clock(&mut self) {
        self.installation.unset_clock();
    }

    /// Serves the same installation again, on a new port.
    pub fn start_again(&mut self) {
        self.process = Some(Process::start(&self.installation));
    }

    /// Serves the same installation again, with the test's own command.
    pub fn start_again_as(&mut self, command: &mut Command) {
        self.process = Some(Process::spawn(command, &self.installation));
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
    banner: String,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start(installation: &Installation) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(installation.log_path()).unwrap();
        Self::spawn(installation.command(&["serve"]).stderr(log), installation)
    }

    /// Starts the service and waits until it prints its addresses.
    fn spawn(command: &mut Command, installation: &Installation) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("\n  Database") {
            if stdout.read_line(&mut banner).unwrap() == 0 {
                panic!("the service did not start: {}", installation.log());
            }
        }
        let (_, address) = banner.split_once("(listening on ").unwrap();
        let address = address.split_once(')').unwrap().0.parse().unwrap();
        Self { child, address, banner, stdout }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
