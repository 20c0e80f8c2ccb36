//! An identity provider for the tests, npm's `oidc-provider` (provider.mjs), and people who sign in there.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use testbed::{Connection, Request};

use crate::browser::Page;

pub(crate) struct Provider {
    port: u16,
    running: Option<Running>,
}

struct Running {
    child: Child,
    /// Kept open, because the process prints more.
    _output: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl Provider {
    /// Not started yet, because the console needs its address first.
    pub(crate) fn new() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { port: free.local_addr().unwrap().port(), running: None }
    }

    pub(crate) fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Starts with `people`: claims by name. A restart loses all state, including the keys.
    /// `sid`: whether ID tokens name sessions.
    pub(crate) fn start(&mut self, console: &str, people: Value, sid: bool) {
        self.stop();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let installed = Command::new(here.join("../../tools/clients")).output().unwrap();
        let clients = PathBuf::from(String::from_utf8(installed.stdout).unwrap().trim());
        // Node looks for packages beside the script.
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(here.join("tests/console/provider.mjs"), folder.path().join("provider.mjs")).unwrap();
        std::os::unix::fs::symlink(clients.join("node/node_modules"), folder.path().join("node_modules")).unwrap();
        let mut command = Command::new("node");
        let settings = json!({ "port": self.port, "console": console, "people": people, "sid": sid });
        command.arg("provider.mjs").arg(settings.to_string());
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while said != "ready\n" {
            said.clear();
            assert!(output.read_line(&mut said).unwrap() > 0, "the provider does not start");
        }
        self.running = Some(Running { child, _output: output, _folder: folder });
    }

    /// A logout token with these claims, issuer and audience.
    pub(crate) fn logout_token(&self, claims: &Value) -> String {
        let claims: String = url::form_urlencoded::byte_serialize(claims.to_string().as_bytes()).collect();
        let request = Request::chat("", "").without("Authorization").method("GET");
        let request = request.target(&format!("/sign?claims={claims}")).header("Host", "127.0.0.1");
        let mut connection = Connection::connect(([127, 0, 0, 1], self.port).into());
        String::from_utf8(connection.send(request.bytes()).response().body).unwrap()
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }

    /// From the console's sign-in page to the provider's pages and back, as a person without a session at the provider.
    pub(crate) fn sign_in(page: &mut Page, name: &str) {
        page.click("a[href^='/sign-in/provider']");
        Self::log_in(page, name);
    }

    /// Submits the provider's pages.
    pub(crate) fn log_in(page: &mut Page, name: &str) {
        page.fill("[name=login]", name);
        page.fill("[name=password]", "any");
        page.click("button[type=submit]");
        if page.eval("!!document.querySelector('form[action*=\"/interaction/\"]')") == true {
            page.click("button[type=submit]"); // consent
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.stop();
    }
}
