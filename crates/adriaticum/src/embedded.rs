//! The embedded runtime: `serve` runs it as a supervised child process, which is the `engine` command.

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use engine::{
    Address, EmbeddingEngine, Engine, EngineError, Frontend, Listener, ModelError, NoSpeed, Progress, Speed, Trial,
};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use runtimes::{EngineCommand, MODEL_ERROR_EXIT_CODE, Pool, PoolSettings, RuntimeUrl, supervise};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{EngineCommand as Subcommand, EngineOptions};
use crate::error::CliError;
use crate::log;
use crate::model::why_unloadable;
use crate::settings::Settings;
use crate::storage::create_folder;

/// For an engine that could not load its model and is started once more for the reason.
const MODEL_FAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the embedded runtime and its supervisor; none if `model` is none.
pub(crate) fn start(settings: &Settings) -> Option<Arc<Pool>> {
    let (pool, supervisor) = prepare(settings)?;
    tokio::spawn(supervisor);
    Some(pool)
}

/// The pool with the embedded runtime as its only member, and the supervisor that runs it until it is dropped.
pub(crate) fn prepare(settings: &Settings) -> Option<(Arc<Pool>, impl Future<Output = ()> + Send + 'static)> {
    let model = settings.model_file()?;
    let socket = SocketFile::new(&settings.data_dir);
    let urls = vec![RuntimeUrl::own_engine(&socket.0)];
    let pool = Pool::new(PoolSettings { urls, key: None, timeout: settings.runtime.timeout, guard: false });
    let supervision = supervise(engine_command(settings, &model, &socket), pool.clone());
    let supervisor = async move {
        let _socket = socket;
        supervision.await;
    };
    Some((pool, supervisor))
}

/// The command of an engine at this socket, with the settings of this process.
pub(crate) fn engine_command(settings: &Settings, model: &Path, socket: &SocketFile) -> EngineCommand {
    let mut arguments: Vec<OsString> = settings.engine_flags().map(OsString::from).collect();
    let listen = Address::Unix(socket.0.clone()).to_string();
    arguments.extend(["engine".into(), "--supervised".into(), "--listen".into(), listen.into()]);
    arguments.extend(["--model".into(), model.into()]);
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("adriaticum"));
    EngineCommand { program, arguments, model: model.to_owned(), stderr: log::child_stderr() }
}

/// Why the engine cannot load its model: starts it once more, and reads its last error.
pub(crate) async fn model_fault(settings: &Settings) -> Option<String> {
    let (model, socket) = (settings.model_file()?, SocketFile::new(&settings.data_dir));
    let command = engine_command(settings, &model, &socket);
    let mut engine = tokio::process::Command::new(command.program);
    engine
        .args(command.arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut engine = engine.spawn().ok()?;
    let _stdin = engine.stdin.take(); // the engine exits when this is closed
    let output = tokio::time::timeout(MODEL_FAULT_TIMEOUT, engine.wait_with_output()).await.ok()?.ok()?;
    let lines = output.stderr.split(|byte| *byte == b'\n').rev();
    let errors = lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let mut own = errors.filter(|line| line["level"] == "ERROR" && line["target"] == env!("CARGO_PKG_NAME"));
    Some(own.next()?["message"].as_str()?.to_owned())
}

/// The file of a Unix socket in the data folder; removed on drop.
pub(crate) struct SocketFile(PathBuf);

impl SocketFile {
    /// A name that no other process uses, not even one in another container. Removes files that crashed processes left
    /// behind.
    pub(crate) fn new(data_dir: &Path) -> Self {
        let is_socket = |name: &str| name.starts_with("engine-") && name.ends_with(".sock");
        for entry in std::fs::read_dir(data_dir).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(is_socket) && unix_socket::is_stale(&entry.path()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        let folder = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self(folder.join(format!("engine-{random:016x}.sock")))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The `engine` command.
pub(crate) fn run(settings: &Settings, options: EngineOptions) -> Result<ExitCode, CliError> {
    restart_with_environment();
    log::start(&settings.log);
    let (model, again, text) = match options.command {
        Some(Subcommand::Tune { model }) => (model, true, None),
        Some(Subcommand::Perplexity { model, text }) => (model, false, Some(text)),
        None => (options.model, false, None),
    };
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path);
        text.map_err(|error| CliError::new(format!("{} cannot be read: {error}.", path.display())))
    };
    let text = text.map(read).transpose()?;
    let model = model.or_else(|| settings.model_file());
    let model = model.ok_or_else(|| CliError::new("there is no model: give one with --model, or set `model`."))?;
    if options.supervised {
        exit_when_stdin_closes();
    }
    if options.embeddings {
        return run_embeddings(&model, options.listen, options.supervised);
    }
    create_folder(&settings.data_dir)?; // the tuning is stored there
    let path = model.clone();
    let engine_settings = engine::Settings {
        model,
        data_dir: settings.data_dir.clone(),
        cells: settings.engine.cells,
        max_running: settings.engine.requests,
        max_queued: settings.engine.queue,
        queue_timeout: settings.engine.wait,
        sharing: settings.engine.sharing,
        kernels: settings.engine.kernels,
        gpu: settings.engine.gpu.clone(),
        weights: settings.engine.weights,
    };
    let engine = match Engine::load(engine_settings, again, LoadProgress::new(again)) {
        Ok(engine) => engine,
        Err(EngineError::Model(reason)) => return Ok(report_model(&path, &reason)),
        Err(error) => return Err(CliError::new(format!("{error}."))),
    };
    if let Some(roles) = engine.unmarked_roles() {
        tracing::warn!(
            %roles,
            "the model's template ends messages of these roles by text alone: a message that contains that text can \
             continue in another role's name"
        );
    }
    let (choice, speed) = (engine.tuning.choice, engine.tuning.speed);
    if again {
        writeln!(std::io::stdout(), "Chosen: {choice} ({}).", format_speed(&speed))?;
        return Ok(ExitCode::SUCCESS);
    }
    tracing::info!(
        model = engine.name(),
        context = engine.context(),
        cells = engine.cells(),
        settings = %choice,
        computes = engine.placement.as_ref().map_or_else(|| "the CPU".into(), ToString::to_string),
        tuned = if engine.tuned_now { "just now" } else { "before" },
        "model loaded"
    );
    if let Some(text) = text {
        let perplexity = engine.perplexity(&text).map_err(|error| CliError::new(format!("{error}.")))?;
        writeln!(std::io::stdout(), "{perplexity:.4}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = engine.name();
    let (frontend, decode_loop) = engine.split().map_err(|error| CliError::new(format!("{error}.")))?;
    serve_beside(frontend, name, options.listen, options.supervised, || decode_loop.run())
}

/// The `engine` command for an embedding model.
fn run_embeddings(model: &Path, listen: Address, supervised: bool) -> Result<ExitCode, CliError> {
    let (engine, frontend) = match EmbeddingEngine::load(model) {
        Ok(loaded) => loaded,
        Err(EngineError::Model(reason)) => return Ok(report_model(model, &reason)),
        Err(error) => return Err(CliError::new(format!("{error}."))),
    };
    let name = engine.name();
    serve_beside(frontend, name, listen, supervised, || engine.run())
}

/// Serves on another thread, because the thread that has loaded the model must run it.
fn serve_beside(
    frontend: Frontend,
    name: String,
    listen: Address,
    supervised: bool,
    compute: impl FnOnce() -> Result<(), EngineError>,
) -> Result<ExitCode, CliError> {
    let server = std::thread::Builder::new().name("http".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::new(format!("the engine could not start: {error}")))?;
        runtime.block_on(serve(frontend, &name, &listen, supervised))
    })?;
    compute().map_err(|error| CliError::new(format!("{error}.")))?;
    server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(ExitCode::SUCCESS)
}

/// Reports why a model cannot be served. The exit code tells the supervisor whether to restart.
fn report_model(path: &Path, reason: &ModelError) -> ExitCode {
    let sentence = match reason {
        ModelError::NotLoadable(_) => why_unloadable(path),
        ModelError::Unreadable(..) => CliError::new(format!(
            "{reason}. Name another file with --model, or get one with `adriaticum model fetch`."
        )),
        _ => CliError::new(format!("{reason}.")),
    };
    log::report(&sentence);
    match reason {
        ModelError::NoMemory(..) => ExitCode::FAILURE,
        _ => ExitCode::from(MODEL_ERROR_EXIT_CODE),
    }
}

async fn serve(frontend: Frontend, name: &str, address: &Address, supervised: bool) -> Result<(), CliError> {
    let listener = Listener::bind(address).await.map_err(|error| {
        CliError::new(format!("cannot listen on {address}: {error}. Give another address with --listen."))
    })?;
    if !supervised {
        let address = listener.address().unwrap_or_else(|_| address.clone());
        let base = match &address {
            Address::Tcp(address) => format!("http://{address}/v1"),
            Address::Unix(_) => address.to_string(),
        };
        let _ = writeln!(std::io::stdout(), "{name} is served at {base}");
    }
    let handle = |kind| signal(kind).map_err(|error| CliError::new(format!("signals cannot be handled: {error}")));
    let (mut interrupt, mut terminate) = (handle(SignalKind::interrupt())?, handle(SignalKind::terminate())?);
    let stop = async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            // Signals reach the whole process group. `serve` finishes its requests first, and then closes stdin.
            if !supervised {
                return;
            }
        }
    };
    tokio::select! {
        () = stop => {}
        () = frontend.serve(listener) => {}
    }
    if let Address::Unix(path) = address {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Variables that libraries read at the start of the process, which is therefore restarted with them.
const ENVIRONMENT: [(&str, &str); 4] = [
    // Our allocator reserves a GiB at a time, and fails badly if a limit (`RLIMIT_DATA`) keeps it from using that. Without
    // reserves, the limit counts what is used.
    ("MIMALLOC_ARENA_RESERVE", "0"),
    // Huge pages for weights and cache, where the system has them on request: the cells of many sequences are
    // scattered, and TLB misses on small pages took a tenth of the time of decoding sixteen sequences.
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    // How long waiting threads spin before they sleep: about 1 ms instead of 12. A spinning thread may keep the thread
    // that it waits for from a CPU, if other processes use the other CPUs.
    ("GOMP_SPINCOUNT", "20000"),
    // If llama.cpp aborts, it must not start a debugger first.
    ("GGML_NO_BACKTRACE", "1"),
];

/// Executes this program again with `ENVIRONMENT`, unless it is set.
pub(crate) fn restart_with_environment() {
    let missing: Vec<_> = ENVIRONMENT.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    if let (false, Ok(program)) = (missing.is_empty(), std::env::current_exe()) {
        // Returns only on failure; then this process runs without the variables.
        let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).envs(missing).exec();
    }
}

/// The supervisor holds the other end of standard input. When that is closed for any reason, this process exits.
fn exit_when_stdin_closes() {
    std::thread::spawn(|| {
        let mut buffer = [0; 64];
        while std::io::stdin().read(&mut buffer).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    });
}

/// Progress of loading and tuning: bars on a terminal, log lines otherwise.
struct LoadProgress {
    /// None without a terminal.
    bar: Option<ProgressBar>,
    tune_only: bool,
}

impl LoadProgress {
    fn new(tune_only: bool) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| progress_bar(ProgressBar::new(100), "{percent:>3} %"));
        let bar = bar.map(|bar| bar.with_message("Loading the model"));
        Self { bar, tune_only }
    }
}

impl Progress for LoadProgress {
    fn loading(&mut self, done: f32) {
        let Some(bar) = &self.bar else { return };
        bar.set_position((done * 100.0) as u64);
        if done >= 1.0 {
            bar.finish_and_clear();
        }
    }

    fn trying(&mut self, done: usize, all: usize) {
        match &mut self.bar {
            Some(bar) if done == 0 => {
                let first = if self.tune_only { "Finding" } else { "The first time with this model: finding" };
                *bar = progress_bar(ProgressBar::new(all as u64), "{pos} of {len}");
                bar.set_message(format!("{first} the fastest settings"));
                bar.enable_steady_tick(Duration::from_millis(200));
            }
            Some(bar) => bar.set_position(done as u64),
            None if done == 0 && !self.tune_only => {
                tracing::info!("the first time with this model on this machine: finding the fastest settings");
            }
            None => {}
        }
    }

    fn tried(&mut self, Trial { settings: choice, speed, quiet }: &Trial) {
        let busy = if *quiet { "" } else { ", while other processes were busy" };
        let speed = match speed {
            Ok(speed) => format_speed(speed) + busy,
            Err(NoSpeed::DoesNotWork) => "does not work on this machine".into(),
            Err(NoSpeed::TooSlow) => "slower".into(),
        };
        let print = || {
            let _ = writeln!(std::io::stdout(), "{choice}: {speed}"); // the result is stored in any case
        };
        match &self.bar {
            Some(bar) if self.tune_only => bar.suspend(print),
            None if self.tune_only => print(),
            Some(_) => tracing::debug!(settings = %choice, %speed, "tried"),
            None => tracing::info!(settings = %choice, %speed, "tried"),
        }
    }

    fn converting(&mut self, bytes: u64) {
        let bytes = DecimalBytes(bytes);
        match &self.bar {
            Some(bar) => bar.set_message(format!("Converting the weights ({bytes})")),
            None => tracing::info!(%bytes, "converting the weights, to try them in another form"),
        }
    }
}

impl Drop for LoadProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn progress_bar(bar: ProgressBar, count: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!("{{msg}} {{wide_bar}} {count}"));
    bar.with_style(style.expect("the template is well-formed"))
}

fn format_speed(speed: &Speed) -> String {
    let Speed { prompt, together, one } = speed;
    format!("{prompt:.0} prompt tokens/s; {together:.0} tokens/s for several requests, {one:.0} for one")
}
