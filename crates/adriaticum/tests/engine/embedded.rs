//! Services with the embedded runtime: one that all tests share, and separate ones.

use std::fs::{self, File};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::process::Pid;
use serde_json::Value;
use testbed::{Conversation, EngineStatus, Installation, Request, Response, Service};

use crate::ADRIATICUM;

/// A service with the embedded runtime, to be started.
pub(crate) struct EmbeddedBuilder(Installation);

impl EmbeddedBuilder {
    /// With the default model.
    pub(crate) fn new() -> Self {
        Self::serving(ADRIATICUM.default_model())
    }

    /// With that model file.
    pub(crate) fn serving(file: &Path) -> Self {
        Self::serving_in(ADRIATICUM.install(), file)
    }

    /// With that model file, in the test's own installation.
    pub(crate) fn serving_in(mut installation: Installation, file: &Path) -> Self {
        installation.use_cached_tuning();
        installation.set("model", file.to_str().unwrap());
        // Enough for slightly more than one whole conversation, because many engines run at the same time here.
        installation.set("engine.cells", "12288");
        // The machine may be busy.
        installation.set("engine.wait", "9m");
        installation.set("runtime.timeout", "9m");
        Self(installation)
    }

    pub(crate) fn set(mut self, setting: &str, value: &str) -> Self {
        self.0.set(setting, value);
        self
    }

    /// The installation, not served yet.
    pub(crate) fn installation(&self) -> &Installation {
        &self.0
    }

    /// Starts the service, and waits until the model is loaded.
    pub(crate) fn start(self) -> EmbeddedService {
        let service = self.start_unloaded();
        service.wait_until_loaded();
        service
    }

    pub(crate) fn start_unloaded(self) -> EmbeddedService {
        let command = self.0.command(&["serve"]);
        self.start_as(command)
    }

    /// With the test's own command.
    pub(crate) fn start_as(self, mut command: Command) -> EmbeddedService {
        command.stderr(File::create(self.0.folder().join("log")).unwrap());
        EmbeddedService(Service::start_as(self.0, &mut command))
    }
}

/// A service with the embedded runtime, started.
pub(crate) struct EmbeddedService(Service);

impl Deref for EmbeddedService {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.0
    }
}

impl DerefMut for EmbeddedService {
    fn deref_mut(&mut self) -> &mut Service {
        &mut self.0
    }
}

impl EmbeddedService {
    /// The service shared by all tests that do not disturb it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<EmbeddedService> = OnceLock::new();
        SHARED.get_or_init(|| {
            let service = EmbeddedBuilder::new().start();
            end_with_this_process(&service);
            service
        })
    }

    /// Waits until requests are completed.
    pub(crate) fn wait_until_loaded(&self) {
        let key = self.key_with("first", &[]);
        ADRIATICUM.wait_for("the model", || {
            let response = self.complete(&key, &Conversation::user("Hello!").max_tokens(1));
            (response.status == 200).then_some(())
        });
    }

    /// The response to a conversation.
    pub(crate) fn complete(&self, key: &str, chat: &Conversation) -> Response {
        self.send(&Request::chat(key, chat.body()))
    }

    /// The engine's status.
    pub(crate) fn status(&self) -> EngineStatus {
        EngineStatus::over_socket(&self.engine_socket()).expect("an engine that answers")
    }

    /// Waits until the engine's status satisfies a condition.
    pub(crate) fn wait_for_status(&self, what: &str, wanted: impl Fn(&EngineStatus) -> bool) -> EngineStatus {
        ADRIATICUM.wait_for(what, || EngineStatus::over_socket(&self.engine_socket()).filter(&wanted))
    }

    /// The engine's socket, which is named at random.
    pub(crate) fn engine_socket(&self) -> PathBuf {
        ADRIATICUM.wait_for("the engine's socket", || {
            let mut files = fs::read_dir(self.data()).unwrap().map(|entry| entry.unwrap().path());
            files.find(|file| file.extension().is_some_and(|extension| extension == "sock"))
        })
    }

    /// The engine's process, if there is one.
    pub(crate) fn engine_pid(&self) -> Option<Pid> {
        let serve = self.pid().as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{serve}/task/{serve}/children")).unwrap();
        Pid::from_raw(children.split_whitespace().next()?.parse().unwrap())
    }

    /// A request's only row in the ledger.
    pub(crate) fn row(&self, request_id: &str) -> Value {
        let mut rows = self.rows().into_iter().filter(|row| row["request_id"] == request_id);
        let row = rows.next().unwrap_or_else(|| panic!("{request_id} is not in the ledger"));
        assert!(rows.next().is_none(), "{request_id} is in the ledger twice");
        row
    }
}

/// A static is never dropped, so a shell waits for the end of this process and cleans up.
#[allow(clippy::zombie_processes, reason = "it outlives this process")]
fn end_with_this_process(service: &Service) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "read nothing; kill -9 $0; rm -rf $1"]).arg(service.pid().as_raw_nonzero().to_string());
    let shell = shell.arg(service.folder()).stdin(Stdio::piped()).spawn().unwrap();
    std::mem::forget(shell.stdin);
}

/// Whether any thread of a process still runs. The first thread can be a zombie while another one still holds the
/// process's sockets open.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    })
}
