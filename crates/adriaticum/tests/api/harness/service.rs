//! The service: a data folder with the commands that work on it, and the real binary serving it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use testbed::Cluster;

use super::{Answer, Connection, Request, Runtime, ask, eventually};

/// Whether the suite runs on PostgreSQL this time, rather than on SQLite.
pub(crate) fn on_postgres() -> bool {
    std::env::var_os("TEST_DATABASE").is_some_and(|database| database == "postgres")
}

/// A data folder, its settings, and the commands that work on it. Settings are given as the environment gives them.
pub(crate) struct Home {
    settings: Vec<(String, String)>,
    data: PathBuf,
    folder: TempDir,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Ports are given by the system, so that tests can run at once.
        let settings = [
            ("api.listen", "127.0.0.1:0"),
            ("console.listen", "127.0.0.1:0"),
            ("ops.listen", "127.0.0.1:0"),
            ("model", "none"),
        ];
        let mut home = Self { settings: Vec::new(), data: PathBuf::new(), folder };
        settings.into_iter().for_each(|(name, value)| home.set(name, value));
        home.set_data(home.folder.path().join("data"));
        if on_postgres() {
            home.set("database_url", &Cluster::shared().create_database());
        }
        home
    }

    /// A folder of the test's own, also the one that commands run in.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the database is.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn set_data(&mut self, data: PathBuf) {
        self.set("data_dir", data.to_str().unwrap());
        self.data = data;
    }

    /// Writes the configuration file, which a running service reads again when it is told to.
    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(self.folder().join("adriaticum.toml"), text).unwrap();
    }

    pub(crate) fn set(&mut self, setting: &str, value: &str) {
        let variable = variable(setting);
        self.settings.retain(|(name, _)| *name != variable);
        self.settings.push((variable, value.to_owned()));
    }

    fn setting(&self, setting: &str) -> Option<String> {
        let variable = variable(setting);
        self.settings.iter().find(|(name, _)| *name == variable).map(|(_, value)| value.clone())
    }

    /// The binary with the home's settings and nothing of this process's own.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adriaticum"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ADRIATICUM_")) {
            command.env_remove(name);
        }
        command.env_remove("RUST_BACKTRACE");
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command.args(arguments).current_dir(self.folder()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.command(arguments))
    }

    /// The output of a command that must succeed.
    pub(crate) fn output(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        ran.stdout
    }

    /// A new key, made with whatever options.
    pub(crate) fn key_with(&self, name: &str, options: &[&str]) -> String {
        let mut arguments = vec!["keys", "create", name];
        arguments.extend(options);
        let stdout = self.output(&arguments);
        let key = stdout.strip_suffix('\n').unwrap();
        assert!(!key.is_empty() && !key.contains(char::is_whitespace), "the key alone: {stdout:?}");
        key.to_owned()
    }

    /// A new key that may do everything.
    pub(crate) fn key(&self) -> String {
        self.key_with("test", &[])
    }

    /// Every row of the ledger, newest first.
    pub(crate) fn rows(&self) -> Vec<Value> {
        let rows = self.output(&["usage", "--requests", "--json", "--limit", "1000000"]);
        serde_json::from_str(&rows).unwrap()
    }

    /// The sums of the ledger.
    pub(crate) fn sums(&self) -> Value {
        serde_json::from_str(&self.output(&["usage", "--json"])).unwrap()
    }

    /// The rows, once there are that many; for requests whose end nobody tells us.
    pub(crate) fn wait_for_rows(&self, count: usize) -> Vec<Value> {
        eventually("rows in the ledger", || Some(self.rows()).filter(|rows| rows.len() >= count))
    }

    /// What the service has written to its log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.folder().join("log")
    }
}

/// The variable that sets a setting.
fn variable(setting: &str) -> String {
    format!("ADRIATICUM_{}", setting.replace('.', "_").to_ascii_uppercase())
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// A service to be started.
pub(crate) struct Setup(Home);

impl Setup {
    pub(crate) fn new() -> Self {
        Self(Home::new())
    }

    /// A service in front of these runtimes.
    pub(crate) fn with(runtimes: &[&Runtime]) -> Self {
        let urls: Vec<_> = runtimes.iter().map(|runtime| runtime.url()).collect();
        Self::new().set("runtime.urls", &urls.join(","))
    }

    pub(crate) fn set(mut self, setting: &str, value: &str) -> Self {
        self.0.set(setting, value);
        self
    }

    /// A service with that configuration file.
    pub(crate) fn configured(text: &str) -> Self {
        let setup = Self::new();
        setup.0.configure(text);
        setup
    }

    pub(crate) fn data(mut self, data: PathBuf) -> Self {
        self.0.set_data(data);
        self
    }

    /// One more replica over a home's database.
    pub(crate) fn beside(mut self, home: &Home) -> Self {
        self.0.set_data(home.data.clone());
        match home.setting("database_url") {
            Some(url) => self.set("database_url", &url),
            None => self,
        }
    }

    pub(crate) fn start(self) -> Service {
        Service { process: Some(Process::start(&self.0)), home: self.0 }
    }
}

/// A home that is being served, or was until it was stopped.
pub(crate) struct Service {
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
    pub(crate) fn start_as(home: Home, command: &mut Command) -> Self {
        Self { process: Some(Process::spawn(command, &home)), home }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process().address
    }

    /// What the service has printed at its start.
    pub(crate) fn greeting(&self) -> &str {
        &self.process().greeting
    }

    /// The next line with that in it which the service prints.
    pub(crate) fn next_line_with(&mut self, part: &str) -> String {
        let stdout = &mut self.process.as_mut().expect("a running service").stdout;
        let line = stdout.lines().map(Result::unwrap).find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("the service has not printed {part:?}"))
    }

    /// What stands behind a name in the greeting.
    pub(crate) fn told(&self, name: &str) -> Option<String> {
        let line = self.greeting().lines().find_map(|line| line.trim().strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    }

    /// Where health and metrics are told.
    pub(crate) fn ops(&self) -> SocketAddr {
        self.told("Ops").unwrap().strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// What is told there under a path: status and body.
    pub(crate) fn look_at(&self, path: &str) -> (u16, String) {
        let request = Request::chat("", "").without("Authorization").method("GET").target(path);
        let answer = Connection::to(self.ops()).send(request.bytes()).answer();
        (answer.status, String::from_utf8(answer.body).unwrap())
    }

    /// What is typed where the service was started, if the command was given a way for that.
    pub(crate) fn typing(&mut self) -> &mut ChildStdin {
        self.process.as_mut().and_then(|process| process.child.stdin.as_mut()).expect("a service with an input")
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process().child)
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::to(self.address())
    }

    /// The answer to bytes on a connection of their own.
    pub(crate) fn send_bytes(&self, bytes: &[u8]) -> Answer {
        self.connect().send(bytes).answer()
    }

    /// The answer to a request on a connection of its own.
    pub(crate) fn send(&self, request: &Request) -> Answer {
        self.send_bytes(&request.bytes())
    }

    /// The answer to a good request with one message.
    pub(crate) fn ask(&self, key: &str, content: &str) -> Answer {
        self.send(&Request::chat(key, ask(content)))
    }

    /// Has the configuration read again, and waits until the log tells of it; gives what it tells.
    pub(crate) fn reload(&self) -> String {
        let before = self.log().len();
        self.signal(Signal::HUP);
        eventually("the configuration being read again", || {
            let log = self.log();
            let told = log.get(before..).filter(|told| told.contains("was read again") && told.ends_with('\n'));
            told.map(str::to_owned)
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// How the process has ended, if it has.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().expect("a service that was not killed").child.try_wait().unwrap()
    }

    /// How the process ends by itself.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        eventually("the service's exit", || self.exit_status())
    }

    /// Ends the process as a power cut would, as far as the process can tell.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Changes a setting for the next start.
    pub(crate) fn set(&mut self, setting: &str, value: &str) {
        self.home.set(setting, value);
    }

    /// Serves the same home again, on a new port.
    pub(crate) fn start_again(&mut self) {
        self.process = Some(Process::start(&self.home));
    }

    /// Serves the same home again, by a command of the test's own making.
    pub(crate) fn start_again_as(&mut self, command: &mut Command) {
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
