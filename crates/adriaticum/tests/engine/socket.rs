//! The engine's socket: no other user's process can answer in its place, with any length of the data folder's path.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use testbed::{Conversation, EngineStatus};

use crate::embedded::EmbeddedBuilder;
use crate::{ADRIATICUM, run_alone};

const ANOTHER_USER: u32 = 65534;
const IMPOSTORS_ANSWER: &str = "an impostor's answer";

/// Another user's runtime on a socket, which reports itself healthy and completes every request.
const IMPOSTOR: &str = r#"
import json, os, socketserver, sys
from http.server import BaseHTTPRequestHandler
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def address_string(self): return "a socket"
    def log_message(self, *arguments): pass
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer({"data": [{"id": "m", "object": "model", "owned_by": "adriaticum", "max_model_len": 8192}]})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "an impostor's answer"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.answer({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
os.umask(0)
Server(sys.argv[1], Handler).serve_forever()
"#;

struct Impostor(Child);

impl Impostor {
    fn start(socket: &Path) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", IMPOSTOR]).arg(socket).uid(ANOTHER_USER).gid(ANOTHER_USER);
        let impostor = Self(command.current_dir("/").stderr(Stdio::null()).spawn().unwrap());
        ADRIATICUM.wait_for("the impostor", || std::os::unix::net::UnixStream::connect(socket).ok());
        impostor
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An installation whose data folder has a long path, and its data folder.
fn with_long_path() -> EmbeddedBuilder {
    let mut installation = ADRIATICUM.install();
    let data = installation.folder().join("a".repeat(60)).join("b".repeat(60)).join("data");
    fs::create_dir_all(data.parent().unwrap()).unwrap();
    installation.set_data(data);
    EmbeddedBuilder::serving_in(installation, ADRIATICUM.default_model())
}

/// When the socket was `engine-PID.sock` in the temporary folder, where every user may create files, the requests of a
/// starting service went to any process that listened there, and were recorded as completed.
#[test]
#[ignore = "runs a process as another user, which only root may; `tools/test` runs it as root"]
fn another_user_cannot_answer_in_the_engines_place() {
    let _alone = run_alone();
    let shared = tempfile::tempdir().unwrap();
    fs::set_permissions(shared.path(), Permissions::from_mode(0o1777)).unwrap();
    let builder = with_long_path();
    // The impostor knows the process id before the service starts, as if it had guessed it.
    let mut command = Command::new("sh");
    let script = "echo $$ > pid.new; mv pid.new pid; until [ -e go ]; do sleep 0.02; done; exec \"$0\" serve";
    let served = builder.installation().command(&["serve"]);
    command.args(["-c", script]).arg(served.get_program()).current_dir(served.get_current_dir().unwrap());
    command.envs(served.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TMPDIR", shared.path());
    command.stdin(Stdio::null());
    let folder = builder.installation().folder().to_owned();
    thread::scope(|scope| {
        let impostor = scope.spawn(|| {
            let pid = ADRIATICUM.wait_for("the process", || fs::read_to_string(folder.join("pid")).ok());
            let impostor = Impostor::start(&shared.path().join(format!("engine-{}.sock", pid.trim())));
            fs::write(folder.join("go"), "").unwrap();
            impostor
        });
        let service = builder.start_as(command);
        let _impostor = impostor.join().unwrap();
        let key = service.key();
        let first = ADRIATICUM.wait_for("a completion", || {
            let response = service.complete(&key, &Conversation::user("Who are you?").max_tokens(4));
            (response.status == 200).then_some(response)
        });
        assert_ne!(first.completion().content, IMPOSTORS_ANSWER);
        let found = fs::read_dir(shared.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(found.len(), 1, "only the impostor's: {found:?}");
    });
}

#[test]
fn a_data_folder_with_a_long_path_holds_the_engines_socket() {
    let _alone = run_alone();
    let service = with_long_path().start();
    let socket = service.engine_socket();
    assert!(socket.as_os_str().len() > 107 && socket.starts_with(service.data()), "{}", socket.display());
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(EngineStatus::over_socket(&socket).is_none(), "its path is too long for ordinary clients");
    service.complete(&service.key(), &Conversation::user("Hello!").max_tokens(1)).completion();
}
