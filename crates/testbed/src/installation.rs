//! An installation of the program: its binary, settings and data folder, and the commands that work on it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::{Cluster, FakeRuntime, ServiceBuilder, ShiftedClock, TIMEOUT, wait_for_within};

/// The program under test. Only a test binary knows the path: `env!("CARGO_BIN_EXE_adriaticum")`.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    binary: &'static str,
    timeout: Duration,
}

impl Program {
    pub const fn new(binary: &'static str) -> Self {
        Self { binary, timeout: TIMEOUT }
    }

    /// For suites in which the service waits for slow programs, such as a model.
    pub const fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The binary that cargo built, or the one that `TEST_PROGRAM` names, to test another version.
    pub fn binary(&self) -> &'static str {
        static OTHER: OnceLock<Option<String>> = OnceLock::new();
        OTHER.get_or_init(|| std::env::var("TEST_PROGRAM").ok()).as_deref().unwrap_or(self.binary)
    }

    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A new installation, not served yet.
    pub fn install(self) -> Installation {
        Installation::new(self)
    }

    /// A service without runtimes, to be started.
    pub fn service(self) -> ServiceBuilder {
        ServiceBuilder::new(self.install())
    }

    /// A service in front of these runtimes, to be started.
    pub fn service_with(self, runtimes: &[&FakeRuntime]) -> ServiceBuilder {
        let urls: Vec<_> = runtimes.iter().map(|runtime| runtime.url()).collect();
        self.service().set("runtime.urls", &urls.join(","))
    }

    /// A service with that configuration file, to be started.
    pub fn service_from_file(self, text: &str) -> ServiceBuilder {
        let installation = self.install();
        installation.configure(text);
        ServiceBuilder::new(installation)
    }

    /// Polls until there is a value, as long as the suite's timeout allows.
    pub fn wait_for<T>(self, what: &str, poll: impl FnMut() -> Option<T>) -> T {
        wait_for_within(self.timeout, what, poll)
    }
}

/// Whether the suite runs on PostgreSQL (`TEST_DATABASE=postgres`) rather than on SQLite.
pub fn on_postgres() -> bool {
    std::env::var_os("TEST_DATABASE").is_some_and(|database| database == "postgres")
}

/// A data folder, its settings as environment variables, and the commands that work on it.
pub struct Installation {
    program: Program,
    settings: Vec<(String, String)>,
    data: PathBuf,
    folder: TempDir,
}

/// What a command printed, and its exit code.
#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Installation {
    fn new(program: Program) -> Self {
        print_panics_immediately();
        let folder = tempfile::tempdir().unwrap();
        // The system chooses the ports, so that tests can run in parallel.
        let settings = [
            ("api.listen", "127.0.0.1:0"),
            ("console.listen", "127.0.0.1:0"),
            ("ops.listen", "127.0.0.1:0"),
            ("model", "none"),
            ("search.embeddings", "off"),
        ];
        let mut installation = Self { program, settings: Vec::new(), data: PathBuf::new(), folder };
        settings.into_iter().for_each(|(name, value)| installation.set(name, value));
        installation.set_data(installation.folder.path().join("data"));
        if on_postgres() {
            // A shared machine may stall for seconds.
            installation.set("database_url", &format!("{}?connect_timeout=15", Cluster::shared().create_database()));
            installation.set("database.timeout", "15s");
        }
        installation
    }

    pub fn program(&self) -> Program {
        self.program
    }

    /// Uses SQLite also where the suite runs on PostgreSQL, for features of SQLite alone.
    pub fn use_sqlite(&mut self) {
        let variable = variable("database_url");
        self.settings.retain(|(name, _)| *name != variable);
    }

    /// The test's own folder, in which commands run.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The data folder, with the database.
    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn set_data(&mut self, data: PathBuf) {
        self.set("data_dir", data.to_str().unwrap());
        self.data = data;
    }

    /// Writes the configuration file, which a running service reads again on SIGHUP.
    pub fn configure(&self, text: &str) {
        std::fs::write(self.folder().join("adriaticum.toml"), text).unwrap();
    }

    pub fn set(&mut self, setting: &str, value: &str) {
        let variable = variable(setting);
        self.settings.retain(|(name, _)| *name != variable);
        self.settings.push((variable, value.to_owned()));
    }

    /// Replaces this machine's clock for the program.
    pub fn set_clock(&mut self, clock: &ShiftedClock) {
        self.unset_clock();
        self.settings.extend(clock.environment());
    }

    /// Gives the program this machine's clock again.
    pub fn unset_clock(&mut self) {
        self.settings.retain(|(name, _)| !ShiftedClock::VARIABLES.contains(&name.as_str()));
    }

    pub(crate) fn setting(&self, setting: &str) -> Option<String> {
        let variable = variable(setting);
        self.settings.iter().find(|(name, _)| *name == variable).map(|(_, value)| value.clone())
    }

    /// A command with the installation's settings and none of this process's.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program.binary());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ADRIATICUM_")) {
            command.env_remove(name);
        }
        command.env_remove("RUST_BACKTRACE");
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command.args(arguments).current_dir(self.folder()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        Output::from_command(&mut self.command(arguments))
    }

    /// The standard output of a command that must succeed.
    pub fn run_ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
        output.stdout
    }

    /// A new key, created with these options.
    pub fn key_with(&self, name: &str, options: &[&str]) -> String {
        let mut arguments = vec!["keys", "create", name];
        arguments.extend(options);
        let stdout = self.run_ok(&arguments);
        let key = stdout.strip_suffix('\n').unwrap();
        assert!(!key.is_empty() && !key.contains(char::is_whitespace), "more than the key: {stdout:?}");
        key.to_owned()
    }

    /// A new key with all permissions.
    pub fn key(&self) -> String {
        self.key_with("test", &[])
    }

    /// Every row of the ledger, newest first.
    pub fn rows(&self) -> Vec<Value> {
        let rows = self.run_ok(&["usage", "--requests", "--json", "--limit", "1000000"]);
        serde_json::from_str(&rows).unwrap()
    }

    /// The totals of the ledger.
    pub fn usage(&self) -> Value {
        serde_json::from_str(&self.run_ok(&["usage", "--json"])).unwrap()
    }

    /// Waits for `count` rows and returns all rows; for requests whose end the client does not see.
    pub fn wait_for_rows(&self, count: usize) -> Vec<Value> {
        self.program.wait_for("rows in the ledger", || Some(self.rows()).filter(|rows| rows.len() >= count))
    }

    /// The service's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.folder().join("log")
    }
}

/// The test runner reports panics only after all tests have ended; a run that is cut off should report them, too.
fn print_panics_immediately() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let _ = writeln!(std::io::stderr(), "{}: {panic}", thread.name().unwrap_or("a thread"));
            usual(panic);
        }));
    });
}

/// The environment variable of a setting.
fn variable(setting: &str) -> String {
    format!("ADRIATICUM_{}", setting.replace('.', "_").to_ascii_uppercase())
}

impl Output {
    pub fn from_command(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}
