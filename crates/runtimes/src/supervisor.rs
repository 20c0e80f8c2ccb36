//! Supervises the embedded runtime: starts it, checks its health, restarts it when it exits.
//!
//! It is a separate process, so that a crash in native code costs only its requests in flight. Its standard input is a
//! pipe that this process holds: when this process ends for any reason, the engine reads end-of-file and exits. Its log
//! goes to this process's standard error, or to a pipe. `watchdog` decides whether it is hung.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::process::{Child, ChildStdin, Command};

use crate::pool::{Availability, Pool};
use crate::watchdog::{Cause, EngineState, ProcessState, Sample, Watchdog};

/// The engine cannot use the model file. Restarting it would not help.
pub const MODEL_ERROR_EXIT_CODE: u8 = 65;

const START_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often the state of the process is read from the system, at no cost to the engine.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// How often a healthy engine must decode a token.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// For a model file that is missing or cannot be used.
const MODEL_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The delay before a restart doubles from the first to the second.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// An engine that ran for this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// After this number of consecutive crashes before a first answer, the model is at fault.
const MAX_CRASHES: u32 = 4;

const SIGILL: i32 = 4;
/// SIGABRT, SIGBUS, SIGFPE and SIGSEGV: the signals that a model can cause. An illegal instruction is the build's fault,
/// and SIGKILL comes from outside, for example from the system when memory is short.
const CRASHES: [i32; 4] = [6, 7, 8, 11];

#[derive(Debug, Clone)]
pub struct EngineCommand {
    pub program: PathBuf,
    pub arguments: Vec<std::ffi::OsString>,
    pub model: PathBuf,
    /// The destination of its log; this process's standard error unless given.
    pub stderr: Option<Arc<std::io::PipeWriter>>,
}

impl EngineCommand {
    /// Starts the engine. It exits when the pipe, its standard input, is closed, or the process handle is dropped.
    pub fn spawn(&self) -> std::io::Result<(Child, Option<ChildStdin>)> {
        let stderr = self.stderr.as_ref().map(|pipe| pipe.try_clone()).transpose()?;
        let mut engine = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(stderr.map_or_else(Stdio::inherit, Stdio::from))
            .kill_on_drop(true)
            .spawn()?;
        let stdin = engine.stdin.take(); // waiting for the process would close it
        Ok((engine, stdin))
    }
}

/// Keeps the engine, the pool's only member, running. Never returns; dropping the future kills the engine.
pub fn supervise(command: EngineCommand, pool: Arc<Pool>) -> impl Future<Output = ()> + Send + 'static {
    pool.set_availability(Availability::Starting); // even before the first poll
    keep_running(command, pool)
}

async fn keep_running(command: EngineCommand, pool: Arc<Pool>) {
    let (mut backoff, mut crashes) = (INITIAL_BACKOFF, 0);
    loop {
        if file_version(&command.model).is_none() {
            pool.set_availability(Availability::Unconfigured);
            wait_for_change(&command.model, None).await;
        }
        pool.set_availability(Availability::Starting);
        let version = file_version(&command.model);
        let began = Instant::now();
        let mut has_answered = false;
        let exit = run_once(&command, &pool, &mut has_answered).await;
        let is_crash =
            exit.as_ref().is_ok_and(|status| status.signal().is_some_and(|signal| CRASHES.contains(&signal)));
        crashes = if is_crash && !has_answered { crashes + 1 } else { 0 };
        match exit {
            Ok(status) if crashes == MAX_CRASHES || status.code() == Some(i32::from(MODEL_ERROR_EXIT_CODE)) => {
                let model = command.model.display();
                tracing::error!(%model, %status, "the model cannot be used; waiting for another file");
                pool.set_availability(Availability::Unloadable);
                wait_for_change(&command.model, version).await;
                (backoff, crashes) = (INITIAL_BACKOFF, 0);
                continue;
            }
            Ok(status) => {
                tracing::error!(%status, reason = reason(status), "the engine has exited and is restarted")
            }
            Err(error) => tracing::error!(%error, "the engine could not be started"),
        }
        pool.set_availability(Availability::Starting);
        backoff = if began.elapsed() > STABLE_AFTER { INITIAL_BACKOFF } else { backoff };
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// `has_answered` is set once the engine has decoded a token.
async fn run_once(command: &EngineCommand, pool: &Arc<Pool>, has_answered: &mut bool) -> std::io::Result<ExitStatus> {
    let (mut engine, _stdin) = command.spawn()?;
    let Some(pid) = engine.id() else { return engine.wait().await };
    let started = Instant::now();
    tokio::select! {
        status = engine.wait() => return status,
        () = wait_until_healthy(pool) => {}
        cause = wait_until_suspended(pid) => return kill(&mut engine, cause).await,
    }
    // Its health check decodes a token, so it needs no further probe.
    pool.mark_ready();
    *has_answered = true;
    tracing::info!(after_ms = started.elapsed().as_millis() as u64, "the engine answers");
    watch(&mut engine, pid, pool).await
}

/// Waits until the engine exits, and kills it if it is hung. While it does not respond, requests are refused.
async fn watch(engine: &mut Child, pid: u32, pool: &Arc<Pool>) -> std::io::Result<ExitStatus> {
    let mut watchdog = Watchdog::default();
    let mut passed_at = Some(Instant::now());
    loop {
        tokio::select! {
            status = engine.wait() => return status,
            () = tokio::time::sleep(SAMPLE_INTERVAL) => {}
        }
        let process = ProcessState::read(pid);
        let is_due = passed_at.is_none_or(|at| at.elapsed() >= HEALTH_CHECK_INTERVAL);
        let decodes = match process {
            Some(ProcessState { suspended: true, .. }) => None, // a check could only time out
            _ if is_due => Some(pool.check().await.iter().all(|(_, result)| result.is_ok())),
            _ => None,
        };
        if let Some(decodes) = decodes {
            passed_at = decodes.then(Instant::now);
        }
        match watchdog.observe(Sample { process, decodes }) {
            EngineState::Unclear => {}
            EngineState::Responsive if pool.availability() == Availability::Unresponsive => {
                pool.mark_ready();
                tracing::info!("the engine responds again");
            }
            EngineState::Responsive => {}
            EngineState::Unresponsive(cause) if pool.availability() == Availability::Available => {
                pool.set_availability(Availability::Unresponsive);
                passed_at = None;
                tracing::warn!(
                    pid,
                    cause = cause.as_str(),
                    in_flight = pool.in_flight(),
                    last_decoded_ms = pool.last_decoded().map(|ago| ago.as_millis() as u64),
                    "the engine does not respond: requests get 503 until it does"
                );
            }
            EngineState::Unresponsive(_) => {}
            EngineState::Hung(cause) => return kill(engine, cause).await,
        }
    }
}

async fn kill(engine: &mut Child, cause: Cause) -> std::io::Result<ExitStatus> {
    tracing::error!(cause = cause.as_str(), "the engine is hung and is killed");
    engine.kill().await?;
    engine.wait().await
}

/// For a start, which may take any time unless the process is suspended.
async fn wait_until_suspended(pid: u32) -> Cause {
    let mut watchdog = Watchdog::default();
    loop {
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        if let EngineState::Hung(cause) = watchdog.observe(Sample { process: ProcessState::read(pid), decodes: None }) {
            return cause;
        }
    }
}

async fn wait_until_healthy(pool: &Arc<Pool>) {
    while pool.check().await.iter().any(|(_, found)| found.is_err()) {
        tokio::time::sleep(START_POLL_INTERVAL).await;
    }
}

/// The reason of an exit, as far as the signal shows it.
fn reason(status: ExitStatus) -> &'static str {
    match status.signal() {
        Some(SIGILL) => "an illegal instruction: the program was built for another CPU",
        Some(_) => "a signal",
        None => "see above",
    }
}

/// Size and modification time.
type FileVersion = (u64, SystemTime);

fn file_version(file: &Path) -> Option<FileVersion> {
    let metadata = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
    Some((metadata.len(), metadata.modified().ok()?))
}

async fn wait_for_change(file: &Path, from: Option<FileVersion>) {
    while file_version(file).is_none_or(|version| Some(version) == from) {
        tokio::time::sleep(MODEL_POLL_INTERVAL).await;
    }
}
