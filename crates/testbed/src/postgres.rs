//! A PostgreSQL cluster in a temporary folder. It ends with the test's process, also when that is killed: a small shell
//! program waits for the end of its standard input, which that process holds.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{free_port, wait_for};

/// The owner of the cluster's databases. No role has a password.
const USER: &str = "adriaticum";
/// For many small concurrent databases, and a log that shows lock waits.
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1", "max_connections=300", "shared_buffers=64MB", "logging_collector=off",
    "log_lock_waits=on", "deadlock_timeout=200ms",
];

pub struct Cluster {
    folder: PathBuf,
    port: u16,
    extra: Vec<String>,
    /// Ends the cluster and removes its folder once its standard input ends.
    _watcher: Child,
}

impl Cluster {
    /// The cluster that all tests of a process share, each in its own database.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&[]));
        &SHARED
    }

    /// A cluster for a test that stops or reconfigures it, with more settings (`name=value`).
    pub fn start(settings: &[&str]) -> Self {
        Self::start_after(settings, |data| {
            let mut initdb = unprivileged(&program("initdb")).0;
            run(initdb.arg("-D").arg(data).args(["-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]));
        })
    }

    /// Starts a synchronous standby, which can be promoted. From now on a commit waits for both.
    pub fn start_copy(&self) -> Self {
        let copy = Self::start_after(&[], |data| {
            let mut backup = unprivileged(&program("pg_basebackup")).0;
            backup.arg("-D").arg(data).args(["-R", "-X", "stream", "-c", "fast", "-h", "127.0.0.1", "-U", USER]);
            run(backup.args(["-p", &self.port.to_string()]));
        });
        self.set("synchronous_standby_names", "*");
        copy
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        run(self.pg_ctl().args(["-w", "promote"]));
    }

    fn start_after(settings: &[&str], make: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::Builder::new().prefix("adriaticum-postgres-").tempdir().unwrap().keep();
        let owner = unprivileged(Path::new("true")).1;
        if let Some(owner) = owner {
            run(Command::new("chown").arg(owner).arg(&folder));
        }
        let data = folder.join("data");
        make(&data);
        let extra = settings.iter().map(|&setting| setting.to_owned()).collect();
        let end = format!(
            "read -r _; '{}' -D '{}' -m immediate -w stop; rm -rf '{}'",
            program("pg_ctl").display(),
            data.display(),
            folder.display()
        );
        let mut watcher = unprivileged(Path::new("sh")).0;
        let watcher = watcher.args(["-c", &end]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let cluster = Self { port: free_port(), extra, _watcher: watcher.spawn().unwrap(), folder };
        cluster.start_again();
        cluster
    }

    /// Writes a file that only the server may read; its path.
    pub fn keep(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        if let Some(owner) = unprivileged(Path::new("true")).1 {
            run(Command::new("chown").arg(owner).arg(&path));
        }
        path
    }

    pub fn set(&self, setting: &str, value: &str) {
        self.sql("postgres", &format!("ALTER SYSTEM SET {setting} = '{value}'"));
        self.sql("postgres", "SELECT pg_reload_conf()");
    }

    /// Starts the server again after a stop, on the same port.
    pub fn start_again(&self) {
        let mut options = format!("-p {} -k {}", self.port, self.folder.display());
        SETTINGS.into_iter().chain(self.extra.iter().map(String::as_str)).for_each(|setting| {
            options.push_str(&format!(" -c {setting}"));
        });
        let log = self.folder.join("log");
        run(self.pg_ctl().arg("-l").arg(log).args(["-o", &options, "-w", "start"]));
    }

    /// Stops the server: `smart`, `fast`, or `immediate`, which is like a crash.
    pub fn stop(&self, mode: &str) {
        run(self.pg_ctl().args(["-m", mode, "-w", "stop"]));
    }

    /// Stops or continues every process of the server (SIGSTOP, SIGCONT).
    pub fn freeze(&self, frozen: bool) {
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        let pid_file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        let postmaster: i32 = pid_file.lines().next().unwrap().parse().unwrap();
        let children = format!("/proc/{postmaster}/task/{postmaster}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let children = children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
        for pid in [postmaster].into_iter().chain(children) {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), signal); // a child may have ended meanwhile
        }
    }

    /// Creates an empty database; its URL.
    pub fn create_database(&self) -> String {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// The URL of a database on this server or its standby, of which the writable one is used.
    pub fn url_with(&self, copy: &Self, database_url: &str) -> String {
        let here = format!("127.0.0.1:{}", self.port);
        database_url.replace(&here, &format!("{here},127.0.0.1:{}", copy.port))
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs SQL in a database, given by its name or URL, as its owner; returns the output, one row per line.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let url = if database.contains("://") { database.to_owned() } else { self.url(database) };
        let output = run(Command::new(program("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
            .args(["-d", &url, "-c", sql]));
        output.trim_end().to_owned()
    }

    /// A separate connection to a database, for several statements in one session.
    pub fn session(&self, url: &str) -> Session {
        let mut psql = Command::new(program("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url]);
        let mut child = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Session { stdin: child.stdin.take(), stdout: BufReader::new(child.stdout.take().unwrap()), child }
    }

    /// A real `pg_dump` of a database that runs until this is dropped, because its output is not read.
    pub fn start_dump(&self, url: &str) -> Dump {
        let more_than_a_pipe_holds = "CREATE TABLE IF NOT EXISTS filler AS
            SELECT repeat(md5(number::text), 100) AS text FROM generate_series(1, 1000) AS numbers (number)";
        self.sql(url, more_than_a_pipe_holds);
        let mut dump = Command::new(program("pg_dump"));
        let dump = Dump(dump.args(["-d", url]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
        let dumps = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'pg_dump' AND query LIKE 'COPY%'";
        wait_for("a running dump", || (self.sql(url, dumps) == "1").then_some(()));
        dump
    }

    /// PgBouncer in front of the cluster.
    pub fn start_pooler(&self, mode: &str) -> Pooler {
        let port = free_port();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n",
            self.port
        );
        let settings = self.keep(&format!("pgbouncer-{port}.ini"), &settings);
        let mut pooler = unprivileged(&program("pgbouncer")).0;
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let child = pooler.arg("-q").arg(settings).env("PATH", path).stdin(Stdio::null()).spawn().unwrap();
        wait_for("the pooler", || TcpStream::connect(("127.0.0.1", port)).ok().map(drop));
        Pooler { child, cluster: self.port, port }
    }

    /// The statements that create the tables of a database.
    pub fn schema(&self, url: &str) -> String {
        dump(url, "--schema-only")
    }

    /// The statements that create a database with its contents.
    pub fn contents(&self, url: &str) -> String {
        dump(url, "--inserts")
    }

    /// Runs a script again and again on two connections (`pgbench`) until this is dropped; a line for each run.
    pub fn start_script(&self, url: &str, script: &Path) -> Script {
        let folder = tempfile::tempdir().unwrap();
        let mut pgbench = Command::new(program("pgbench"));
        pgbench.args(["-n", "-c", "2", "-T", "600", "-l", "--log-prefix=runs", "-f"]).arg(script).arg(url);
        let child = pgbench.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Script { child, folder }
    }

    /// Waits until a client waits for a lock in a database.
    pub fn wait_for_blocked(&self, url: &str) {
        let waiting = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        wait_for("a client that waits for a lock", || (self.sql(url, waiting) != "0").then_some(()));
    }

    /// Ends or cancels (`pg_terminate_backend`, `pg_cancel_backend`) a commit that waits for the standby.
    pub fn interrupt_commit(&self, interrupt: &str) {
        let interrupt = format!(
            "SELECT count({interrupt}(pid)) FROM pg_stat_activity
             WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"
        );
        wait_for("a commit that waits for the standby", || (self.sql("postgres", &interrupt) != "0").then_some(()));
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn pg_ctl(&self) -> Command {
        let mut command = unprivileged(&program("pg_ctl")).0;
        command.arg("-D").arg(self.data());
        command
    }
}

pub struct Dump(Child);

impl Drop for Dump {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Pooler {
    child: Child,
    cluster: u16,
    port: u16,
}

impl Pooler {
    /// The URL of one of the cluster's databases through the pooler.
    pub fn url(&self, database_url: &str) -> String {
        database_url.replace(&format!(":{}/", self.cluster), &format!(":{}/", self.port))
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Script {
    child: Child,
    folder: TempDir,
}

impl Script {
    /// The duration of each completed run. Panics if the script fails.
    pub fn runs(&mut self) -> Vec<Duration> {
        assert_eq!(self.child.try_wait().unwrap(), None, "a statement has failed");
        let logs = std::fs::read_dir(self.folder.path()).unwrap().map(|log| log.unwrap().path());
        let lines: String = logs.map(|log| std::fs::read_to_string(log).unwrap()).collect();
        let whole_lines = lines.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole_lines.map(|line| Duration::from_micros(line.split(' ').nth(2).unwrap().parse().unwrap())).collect()
    }

    /// Waits for `count` more runs.
    pub fn wait_for_runs(&mut self, count: usize) {
        let before = self.runs().len();
        wait_for("runs of a script", || (self.runs().len() >= before + count).then_some(()));
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection on which statements run one after the other. Rolls an open transaction back on drop.
pub struct Session {
    child: Child,
    /// `None` only while it is being dropped.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Session {
    /// Runs SQL, and waits until it is done.
    pub fn run(&mut self, sql: &str) {
        const DONE: &str = "done";
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{sql};\n\\echo {DONE}").unwrap();
        let done = self.stdout.by_ref().lines().map(Result::unwrap).any(|line| line == DONE);
        assert!(done, "{sql}");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// Without comments and settings, which differ between versions of `pg_dump`.
fn dump(url: &str, option: &str) -> String {
    let dumped = run(Command::new(program("pg_dump")).args(["--no-owner", "--no-privileges", option, "-d", url]));
    let is_statement = |line: &&str| {
        let others = ["--", "SET ", "SELECT pg_catalog.set_config", "\\"];
        !line.is_empty() && !others.iter().any(|other| line.starts_with(other))
    };
    dumped.lines().filter(is_statement).map(|line| format!("{line}\n")).collect()
}

/// A command run as a user that may run a server, which root may not; with that user's name.
fn unprivileged(program: &Path) -> (Command, Option<&'static str>) {
    if !rustix::process::getuid().is_root() {
        return (Command::new(program), None);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program).current_dir("/");
    (command, Some("postgres"))
}

/// The path of one of PostgreSQL's programs; Debian keeps them out of `PATH`.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|version| version.path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop().unwrap_or_else(|| name.into())
}

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
