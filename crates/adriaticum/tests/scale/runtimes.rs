//! Real runtimes, our own engine and llama.cpp's server: killed, hung, slowed and restarted under load.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testbed::{Cluster, Engine};

use crate::ADRIATICUM;
use crate::load::Load;

/// Few tokens: the machine may be small and busy.
const BODY: &str =
    r#"{"model": "adriaticum", "messages": [{"role": "user", "content": "Count to three."}], "max_tokens": 4}"#;

/// llama.cpp's own server, from its wheel.
struct LlamaServer {
    child: Child,
    address: SocketAddr,
}

impl LlamaServer {
    fn start() -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut server = Self { child: Self::spawn(address), address };
        server.wait_until_it_listens();
        server
    }

    fn start_again(&mut self) {
        self.child = Self::spawn(self.address);
        self.wait_until_it_listens();
    }

    fn spawn(address: SocketAddr) -> Child {
        let bench = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../bench");
        let installed = Command::new("python3")
            .args(["-c", "import installing; print(installing.xllamacpp_python())"])
            .current_dir(&bench)
            .output()
            .unwrap();
        let python = String::from_utf8(installed.stdout).unwrap();
        assert!(!python.is_empty(), "{}", String::from_utf8_lossy(&installed.stderr));
        let mut command = Command::new(python.trim());
        command.arg(bench.join("wheel_server.py")).arg(ADRIATICUM.default_model()).arg(address.port().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn wait_until_it_listens(&mut self) {
        ADRIATICUM.wait_for("llama.cpp's server", || TcpStream::connect(self.address).ok());
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for LlamaServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn runtimes_that_hang_are_killed_or_are_slow() {
    let (first, second, mut llama) = (Engine::start(ADRIATICUM), Engine::start(ADRIATICUM), LlamaServer::start());
    let urls = [first.url(), second.url(), format!("http://{}/v1", llama.address)].join(",");
    let database = Cluster::shared().create_database();
    let start = || {
        let setup = ADRIATICUM.service().set("runtime.urls", &urls).set("database_url", &database);
        setup.set("runtime.timeout", "30s").start()
    };
    let replicas = [start(), start()];
    let key = replicas[0].key();
    let addresses = [replicas[0].address(), replicas[1].address()];
    let load = Load::during(&addresses, &key, BODY, |load| {
        load.wait_for_completions(12);
        // Hung: it accepts connections and does not respond.
        first.signal(Signal::STOP);
        load.wait_for_completions(12);
        first.signal(Signal::CONT);
        load.wait_for_completions(6);
        // Killed and restarted.
        llama.kill();
        load.wait_for_completions(12);
        llama.start_again();
        load.wait_for_completions(12);
        // Slowed: it runs only at intervals.
        for _ in 0..10 {
            llama.signal(Signal::STOP);
            load.wait_for_completions(2);
            llama.signal(Signal::CONT);
            load.wait_for_completions(1);
        }
        load.wait_for_completions(12);
    });
    load.assert_nothing_lost_or_doubled(&replicas[0]);
    assert_eq!(load.broken(), 0);
    let kinds = load.kinds();
    let completed = kinds.get(&(200, None)).copied().unwrap_or(0);
    // A request whose response had begun when its runtime was killed cannot be retried.
    let cut_off: usize = kinds.iter().filter(|((status, _), _)| *status != 200).map(|(_, count)| count).sum();
    assert!(completed > 80 && cut_off <= 12, "{kinds:?}");
    assert!(kinds.keys().all(|(_, code)| matches!(code.as_deref(), None | Some("inference_error"))), "{kinds:?}");
}
