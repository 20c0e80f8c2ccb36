//! Child processes that read documents: started when needed, used for many files, replaced after a failure.
//!
//! A child has access only to the file that it reads: it gets no environment and no other open file.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::message::{read_outcome, write_file};
use super::{DAMAGED, EXTRACT_TIMEOUT, Format, SkipReason, TOO_LONG};
use crate::index::document::Document;

/// In both cases Rust aborts the process.
const TOO_LARGE: &str = "reading it takes too much memory, or it is nested too deeply";

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
        // More threads would need more memory.
        command.env("RAYON_NUM_THREADS", "1");
        // What the allocator reserves cannot be used beyond the limit, and it crashes instead of reporting that.
        command.env("MIMALLOC_ARENA_RESERVE", "0");
        // Not a pipe: writes to an unread pipe would block.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (files, next_file) = mpsc::channel();
        let (done, outcomes) = mpsc::channel();
        // Reads from a pipe have no timeout. This thread may block on them, and ends with the child.
        thread::Builder::new().name("documents".into()).spawn(move || exchange(input, output, next_file, done))?;
        Ok(Process { child, files, outcomes, busy: Duration::ZERO })
    }
}

/// For a thread that reads files one after another.
pub(in crate::index) struct ChildSession<'a> {
    program: &'a ChildProgram,
    process: Option<Process>,
}

impl<'a> ChildSession<'a> {
    pub(in crate::index) fn new(program: &'a ChildProgram) -> Self {
        Self { program, process: None }
    }

    pub(super) fn extract(&mut self, format: Format, bytes: Vec<u8>) -> Result<Document, SkipReason> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.program.start().map_err(|error| format!("no process could be started to read it: {error}"))?,
        };
        let began = Instant::now();
        // The thread has ended only if the child has, and then there is no outcome.
        let _ = process.files.send((format, bytes));
        match process.outcomes.recv_timeout(self.program.timeout) {
            Ok(outcome) => {
                process.busy += began.elapsed();
                // After that, the rest of its CPU time could be too short for a file.
                self.process = Some(process).filter(|process| process.busy < self.program.timeout);
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
    files: mpsc::Sender<(Format, Vec<u8>)>,
    outcomes: mpsc::Receiver<Result<Document, SkipReason>>,
    /// An upper bound of the CPU time that it has used.
    busy: Duration,
}

impl Process {
    fn reason_of_death(mut self) -> &'static str {
        // A process that still runs has sent invalid data.
        let _ = self.child.kill();
        match self.child.wait().ok().and_then(|status| status.signal()) {
            Some(signal) if signal == Signal::ABORT.as_raw() => TOO_LARGE,
            _ => DAMAGED,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends and closes the pipes when one of them fails or there are no more files.
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
