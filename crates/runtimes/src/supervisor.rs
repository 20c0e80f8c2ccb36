//! Keeps the embedded runtime running: starts it, sees whether it answers, starts it again when it ends.
//!
//! It is a process of its own, so that a crash in native code costs the requests that it works on and nothing else. Its
//! standard input is a pipe that we hold: when we are gone, however that came about, it reads the end and goes, too. Its
//! log goes where ours goes.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::process::{Child, Command};

use crate::pool::{Availability, Pool};

/// The exit code of an engine that cannot serve its model's file; starting it again would not help.
pub const UNUSABLE_MODEL: u8 = 65;

/// How often one looks whether the engine answers, while it starts and afterwards.
const STARTING_LOOK: Duration = Duration::from_millis(20);
const RUNNING_LOOK: Duration = Duration::from_secs(5);
/// How many looks in a row may fail before an engine that was running counts as stuck: about two minutes, because one that
/// shares its cores with others can be very slow, and killing it would not make it faster.
const STUCK_AFTER: usize = 18;
/// How often one looks for a model that is not there, or cannot be used.
const MODEL_LOOK: Duration = Duration::from_millis(500);
/// Waits between starts that fail: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// An engine that ran for so long was all right.
const LONG_RUN: Duration = Duration::from_secs(60);

const SIGILL: i32 = 4;

/// How the engine is started.
#[derive(Debug, Clone)]
pub struct EngineCommand {
    /// The program.
    pub program: PathBuf,
    /// Everything that it is to be told.
    pub arguments: Vec<std::ffi::OsString>,
    /// The file that it serves.
    pub model: PathBuf,
}

/// Keeps the engine running behind the pool's only member. Never ends by itself; dropped, it ends the engine.
pub fn supervise(command: EngineCommand, pool: Arc<Pool>) -> impl Future<Output = ()> + Send + 'static {
    pool.set_availability(Availability::Starting); // already before anybody awaits
    keep_running(command, pool)
}

async fn keep_running(command: EngineCommand, pool: Arc<Pool>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if Stamp::of(&command.model).is_none() {
            pool.set_availability(Availability::Unconfigured);
            wait_for_change(&command.model, None).await;
        }
        pool.set_availability(Availability::Starting);
        let stamp = Stamp::of(&command.model);
        let began = Instant::now();
        match run_once(&command, &pool).await {
            Ok(status) if status.code() == Some(i32::from(UNUSABLE_MODEL)) => {
                tracing::error!(model = %command.model.display(), "the model cannot be used; waiting for another file");
                pool.set_availability(Availability::Unconfigured);
                wait_for_change(&command.model, stamp).await;
                pause = FIRST_PAUSE;
                continue;
            }
            Ok(status) => {
                tracing::error!(%status, reason = reason(status), "the engine has ended; it is started again")
            }
            Err(error) => tracing::error!(%error, "the engine could not be started"),
        }
        pool.set_availability(Availability::Starting);
        pause = if began.elapsed() > LONG_RUN { FIRST_PAUSE } else { pause };
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Runs the engine to its end.
async fn run_once(command: &EngineCommand, pool: &Arc<Pool>) -> std::io::Result<ExitStatus> {
    let mut engine = Command::new(&command.program)
        .args(&command.arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    // Held to the end: the engine goes when this is closed.
    let _leash = engine.stdin.take();
    let started = Instant::now();
    tokio::select! {
        status = engine.wait() => return status,
        () = answers(pool) => {}
    }
    // Its health check decodes a token, so nothing is left to doubt.
    pool.open();
    tracing::info!(after_ms = started.elapsed().as_millis() as u64, "the engine answers");
    watch(&mut engine, pool).await
}

/// Waits until the engine ends; one that is stuck is ended.
async fn watch(engine: &mut Child, pool: &Arc<Pool>) -> std::io::Result<ExitStatus> {
    let mut failures = 0;
    loop {
        tokio::select! {
            status = engine.wait() => return status,
            () = tokio::time::sleep(RUNNING_LOOK) => {
                failures = if pool.check().await.iter().all(|(_, found)| found.is_ok()) { 0 } else { failures + 1 };
                if failures == STUCK_AFTER {
                    tracing::error!("the engine is stuck");
                    engine.kill().await?;
                    return engine.wait().await;
                }
            }
        }
    }
}

/// Waits until the engine answers.
async fn answers(pool: &Arc<Pool>) {
    while pool.check().await.iter().any(|(_, found)| found.is_err()) {
        tokio::time::sleep(STARTING_LOOK).await;
    }
}

/// What the end of an engine means, where a signal tells.
fn reason(status: ExitStatus) -> &'static str {
    match status.signal() {
        Some(SIGILL) => "an illegal instruction: the program was built for another CPU",
        Some(_) => "a signal",
        None => "see above",
    }
}

/// By what one sees that a file is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: SystemTime,
}

impl Stamp {
    fn of(file: &Path) -> Option<Self> {
        let about = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
        Some(Self { bytes: about.len(), modified: about.modified().ok()? })
    }
}

async fn wait_for_change(file: &Path, from: Option<Stamp>) {
    while Stamp::of(file).is_none_or(|stamp| Some(stamp) == from) {
        tokio::time::sleep(MODEL_LOOK).await;
    }
}
