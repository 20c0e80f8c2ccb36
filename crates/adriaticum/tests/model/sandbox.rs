//! A folder to fetch models into, and the command's expected output.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use testbed::Output;
use testbed::file_server::FileServer;
use testbed::gguf::GgufFile;

use crate::ADRIATICUM;

/// A folder with a data folder and a fake Python.
pub(crate) struct Sandbox {
    folder: TempDir,
    hub: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let sandbox = Self { folder: tempfile::tempdir().unwrap(), hub: "http://127.0.0.1:9".into() };
        fs::create_dir(sandbox.folder.path().join("bin")).unwrap();
        sandbox
    }

    pub(crate) fn at(hub: &FileServer) -> Self {
        Self { hub: hub.url().to_owned(), ..Self::new() }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// A `python3` that runs this script; `PATH` has no other program.
    pub(crate) fn python(&self, script: &str) {
        let path = self.file("bin/python3", format!("#!/bin/sh\n{script}\n").as_bytes());
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(ADRIATICUM.binary());
        command.env_clear().current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("PATH", self.folder.path().join("bin")).env("HF_HOME", self.folder.path().join("home"));
        command.env("HF_ENDPOINT", &self.hub).args(["model", "fetch"]).args(arguments);
        command
    }

    /// A command of `model`.
    pub(crate) fn model(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(ADRIATICUM.binary());
        Output::from_command(command.current_dir(self.folder.path()).stdin(Stdio::null()).arg("model").args(arguments))
    }

    pub(crate) fn fetch(&self, arguments: &[&str]) -> Output {
        Output::from_command(&mut self.command(arguments))
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The files in the data folder.
    pub(crate) fn files(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.data()) else { return Vec::new() };
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The data folder holds that model and nothing else.
    pub(crate) fn assert_holds(&self, model: &[u8]) {
        assert_eq!(self.files(), ["model.gguf"]);
        assert!(fs::read(self.data().join("model.gguf")).unwrap() == model);
    }
}

/// The command succeeds and prints the installed model on one line.
pub(crate) fn installed(output: &Output, name: &str, bytes: &str) {
    let line = format!(
        "data/model.gguf: {name} (llama, 160008 parameters, Q4_1, {bytes}). A running service loads it automatically.\n"
    );
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), line.as_str()), "{output:?}");
}

/// The command fails, and its last line is an error message that contains all of this.
pub(crate) fn complains(output: &Output, says: &[&str]) {
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{output:?}");
    let last = output.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("adriaticum: ") && last.ends_with('.') && !output.stderr.contains("panicked"),
        "{output:?}"
    );
    says.iter().for_each(|part| assert!(last.contains(part), "without {part:?}: {output:?}"));
}

/// A model of about 100 kB.
pub(crate) fn model(name: &str) -> Vec<u8> {
    GgufFile::model(name, 5000).bytes()
}

pub(crate) fn hex_sha256(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(bytes))
}
