//! Scripts in Python and JavaScript: a folder in which they find their clients, and the results of their cases.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::behaviour::End;
use crate::cases::Case;

/// A folder with all scripts and the function for Open WebUI, where `import` finds the clients.
pub(crate) struct Workshop {
    folder: TempDir,
    clients: PathBuf,
}

impl Workshop {
    pub(crate) fn open() -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let installed = Command::new(here.join("../../tools/clients")).output().unwrap();
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        let clients = PathBuf::from(String::from_utf8(installed.stdout).unwrap().trim());
        let folder = tempfile::tempdir().unwrap();
        for script in std::fs::read_dir(here.join("tests/clients/scripts")).unwrap() {
            let script = script.unwrap();
            if script.file_type().unwrap().is_file() {
                std::fs::copy(script.path(), folder.path().join(script.file_name())).unwrap();
            }
        }
        std::fs::copy(here.join("../../deploy/open-webui/adriaticum.py"), folder.path().join("adriaticum.py")).unwrap();
        std::os::unix::fs::symlink(clients.join("node/node_modules"), folder.path().join("node_modules")).unwrap();
        Self { folder, clients }
    }

    /// Runs a script of the folder, whose name may be followed by arguments, on those cases.
    pub(crate) fn run(&self, script: &str, cases: &[Case]) -> Vec<End> {
        let printed = self.output(script, &serde_json::to_vec(cases).unwrap());
        printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    /// Runs a program that is not in the folder yet; its output.
    pub(crate) fn try_out(&self, script: &str, program: &str) -> String {
        std::fs::write(self.folder.path().join(script), program).unwrap();
        self.output(script, b"")
    }

    /// Runs a script of the folder; its output.
    pub(crate) fn output(&self, script: &str, input: &[u8]) -> String {
        let interpreter = match script.contains(".py") {
            true => self.clients.join("python/bin/python"),
            false => PathBuf::from("node"),
        };
        let mut command = Command::new(interpreter);
        command.args(script.split_whitespace()).current_dir(self.folder.path()).stdin(Stdio::piped());
        // The clients must connect to the service only.
        command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LANGSMITH_TRACING", "false").env("NO_PROXY", "*");
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        running.stdin.take().unwrap().write_all(input).unwrap();
        let output = running.wait_with_output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}
