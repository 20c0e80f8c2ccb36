//! Child processes that read documents: started when needed, used for many files, replaced after a failure.
//!
//! A child knows nothing but the file that it reads: it gets no environment and no other open file.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::message::{read_outcome, write_file};
use super::{DAMAGED, EXTRACT_TIMEOUT, Format, SkipReason, TOO_LONG};
use crate::index::document::Document;

const TOO_MUCH_MEMORY: &str = "reading it takes too much memory";
const TOO_DEEP: &str = "it is nested too deeply";
/// Of what a child says when it dies.
const MAX_LAST_WORDS: u64 = 4096;

/// A program that calls `serve`.
#[derive(Debug, Clone)]
pub struct ChildProgram {
    program: PathBuf,
    arguments: Vec<OsString>,
    timeout: Duration,
}

impl ChildProgram {
    pub fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self { program: program.into(), arguments, timeout: EXTRACT_TIMEOUT }
    }

    /// How long one file may take.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn start(&self) -> io::Result<Process> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear();
        command.envs(std::env::var_os("LD_LIBRARY_PATH").map(|folders| ("LD_LIBRARY_PATH", folders)));
        // Each further thread, and its heap, would take address space.
        command.envs([("RAYON_NUM_THREADS", "1"), ("MALLOC_ARENA_MAX", "1")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (files, next_file) = mpsc::channel();
        let (done, outcomes) = mpsc::channel();
        // A pipe has no timeout. This thread may wait for it; it ends with the child.
        thread::Builder::new().name("documents".into()).spawn(move || exchange(input, output, next_file, done))?;
        Ok(Process { child, errors, files, outcomes })
    }
}

/// For one thread that reads files one after the other.
pub(in crate::index) struct ChildSession<'a> {
    program: &'a ChildProgram,
    process: Option<Process>,
}

impl<'a> ChildSession<'a> {
    pub(super) fn new(program: &'a ChildProgram) -> Self {
        Self { program, process: None }
    }

    pub(super) fn extract(&mut self, format: Format, bytes: Vec<u8>) -> Result<Document, SkipReason> {
        let process = match self.process.take() {
            Some(process) => process,
            None => self.program.start().map_err(|error| format!("no process could be started to read it: {error}"))?,
        };
        // The thread is gone only if the child is, and then there is no outcome.
        let _ = process.files.send((format, bytes));
        match process.outcomes.recv_timeout(self.program.timeout) {
            Ok(outcome) => {
                self.process = Some(process);
                outcome
            }
            Err(mpsc::RecvTimeoutError::Timeout) => Err(TOO_LONG.into()),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(process.reason_of_death().into()),
        }
    }
}

/// Killed when it is dropped.
struct Process {
    child: Child,
    errors: ChildStderr,
    files: mpsc::Sender<(Format, Vec<u8>)>,
    outcomes: mpsc::Receiver<Result<Document, SkipReason>>,
}

impl Process {
    fn reason_of_death(mut self) -> &'static str {
        // One that still runs has sent nonsense.
        let _ = self.child.kill();
        let mut last_words = Vec::new();
        let _ = (&mut self.errors).take(MAX_LAST_WORDS).read_to_end(&mut last_words);
        let status = self.child.wait().ok();
        death_reason(status, &String::from_utf8_lossy(&last_words))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends, and closes the pipes, when one of them fails or no more files come.
fn exchange(
    mut input: ChildStdin,
    mut output: ChildStdout,
    files: mpsc::Receiver<(Format, Vec<u8>)>,
    done: mpsc::Sender<Result<Document, SkipReason>>,
) {
    for (format, bytes) in files {
        let outcome = write_file(&mut input, format, &bytes).and_then(|()| read_outcome(&mut output));
        let Ok(outcome) = outcome else { return };
        if done.send(outcome).is_err() {
            return;
        }
    }
}

/// Rust's own words say why a process aborted.
fn death_reason(status: Option<ExitStatus>, last_words: &str) -> &'static str {
    let signal = status.and_then(|status| status.signal());
    if last_words.contains("memory allocation of") || last_words.contains("capacity overflow") {
        TOO_MUCH_MEMORY
    } else if last_words.contains("overflowed its stack") {
        TOO_DEEP
    } else if signal == Some(Signal::XCPU.as_raw()) {
        TOO_LONG
    } else {
        DAMAGED
    }
}
