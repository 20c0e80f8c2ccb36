//! GPUs: kernel libraries that are refused, missing cards; and real answers by Vulkan's kernels, which Mesa's driver runs
//! on CPUs (`make test-gpu`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refusals;
mod vulkan;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use testbed::{Installation, Program};

const BINARY: &str = env!("CARGO_BIN_EXE_adriaticum");
const ADRIATICUM: Program = Program::new(BINARY).with_timeout(Duration::from_secs(600));

/// A copy of the program in a separate folder, where it looks for kernels.
struct Copied {
    folder: TempDir,
    installation: Installation,
}

impl Copied {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("adriaticum");
        fs::copy(ADRIATICUM.binary(), &program).unwrap();
        fs::create_dir(folder.path().join("kernels")).unwrap();
        let program = Program::new(program.to_str().unwrap().to_owned().leak()).with_timeout(ADRIATICUM.timeout());
        let mut installation = program.install();
        installation.set("model", ADRIATICUM.default_model().to_str().unwrap());
        fs::create_dir_all(installation.data()).unwrap();
        Self { folder, installation }
    }

    /// Where kernels belong.
    fn library(&self, name: &str) -> PathBuf {
        self.folder.path().join("kernels").join(name)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}
