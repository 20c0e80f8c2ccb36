//! An installation of the program: its binary, settings and data folder, and the commands that work on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::{Cluster, Runtime, Setup, TIMEOUT, eventually_within};

/// The program under test. A test binary makes one of Cargo's `CARGO_BIN_EXE_adriaticum`, which only tests are given.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    binary: &'static str,
    timeout: Duration,
}

impl Program {
    pub const fn new(binary: &'static str) -> Self {
        Self { binary, timeout: TIMEOUT }
    }

    /// For suites in which the service takes longer, because of what stands behind it.
    pub const fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub const fn binary(&self) -> &'static str {
        self.binary
    }

    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A new installation that nobody serves yet.
    pub fn home(self) -> Home {
        Home::new(self)
    }

    /// A service without runtimes, to be started.
    pub fn setup(self) -> Setup {
        Setup::new(self.home())
    }

    /// A service in front of these runtimes, to be started.
    pub fn setup_with(self, runtimes: &[&Runtime]) -> Setup {
        let urls: Vec<_> = runtimes.iter().map(|runtime| runtime.url()).collect();
        self.setup().set("runtime.urls", &urls.join(","))
    }

    /// A service with that configuration file, to be started.
    pub fn setup_configured(self, text: &str) -> Setup {
        let home = self.home();
        home.configure(text);
        Setup::new(home)
    }

    /// Polls until there is a value, as long as the suite's timeout allows.
    pub fn eventually<T>(self, what: &str, poll: impl FnMut() -> Option<T>) -> T {
        eventually_within(self.timeout, what, poll)
    }
}

/// Whether the suite runs on PostgreSQL this time, rather than on SQLite.
pub fn on_postgres() -> bool {
    std::env::var_os("TEST_DATABASE").is_some_and(|database| database == "postgres")
}

/// A data folder, its settings, and the commands that work on it. Settings are given as the environment gives them.
pub struct Home {
    program: Program,
    settings: Vec<(String, String)>,
    data: PathBuf,
    folder: TempDir,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Home {
    fn new(program: Program) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Ports are given by the system, so that tests can run at once.
        let settings = [
            ("api.listen", "127.0.0.1:0"),
            ("console.listen", "127.0.0.1:0"),
            ("ops.listen", "127.0.0.1:0"),
            ("model", "none"),
        ];
        let mut home = Self { program, settings: Vec::new(), data: PathBuf::new(), folder };
        settings.into_iter().for_each(|(name, value)| home.set(name, value));
        home.set_data(home.folder.path().join("data"));
        if on_postgres() {
            home.set("database_url", &Cluster::shared().create_database());
        }
        home
    }

    pub fn program(&self) -> Program {
        self.program
    }

    /// A folder of the test's own, also the one that commands run in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the database is.
    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn set_data(&mut self, data: PathBuf) {
        self.set("data_dir", data.to_str().unwrap());
        self.data = data;
    }

    /// Writes the configuration file, which a running service reads again when it is told to.
    pub fn configure(&self, text: &str) {
        std::fs::write(self.folder().join("adriaticum.toml"), text).unwrap();
    }

    pub fn set(&mut self, setting: &str, value: &str) {
        let variable = variable(setting);
        self.settings.retain(|(name, _)| *name != variable);
        self.settings.push((variable, value.to_owned()));
    }

    pub(crate) fn setting(&self, setting: &str) -> Option<String> {
        let variable = variable(setting);
        self.settings.iter().find(|(name, _)| *name == variable).map(|(_, value)| value.clone())
    }

    /// The binary with the home's settings and nothing of this process's own.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program.binary);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ADRIATICUM_")) {
            command.env_remove(name);
        }
        command.env_remove("RUST_BACKTRACE");
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command.args(arguments).current_dir(self.folder()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.command(arguments))
    }

    /// The output of a command that must succeed.
    pub fn output(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        ran.stdout
    }

    /// A new key, made with whatever options.
    pub fn key_with(&self, name: &str, options: &[&str]) -> String {
        let mut arguments = vec!["keys", "create", name];
        arguments.extend(options);
        let stdout = self.output(&arguments);
        let key = stdout.strip_suffix('\n').unwrap();
        assert!(!key.is_empty() && !key.contains(char::is_whitespace), "the key alone: {stdout:?}");
        key.to_owned()
    }

    /// A new key that may do everything.
    pub fn key(&self) -> String {
        self.key_with("test", &[])
    }

    /// Every row of the ledger, newest first.
    pub fn rows(&self) -> Vec<Value> {
        let rows = self.output(&["usage", "--requests", "--json", "--limit", "1000000"]);
        serde_json::from_str(&rows).unwrap()
    }

    /// The sums of the ledger.
    pub fn sums(&self) -> Value {
        serde_json::from_str(&self.output(&["usage", "--json"])).unwrap()
    }

    /// The rows, once there are that many; for requests whose end nobody tells us.
    pub fn wait_for_rows(&self, count: usize) -> Vec<Value> {
        self.program.eventually("rows in the ledger", || Some(self.rows()).filter(|rows| rows.len() >= count))
    }

    /// What the service has written to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.folder().join("log")
    }
}

/// The variable that sets a setting.
fn variable(setting: &str) -> String {
    format!("ADRIATICUM_{}", setting.replace('.', "_").to_ascii_uppercase())
}

impl Ran {
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}
