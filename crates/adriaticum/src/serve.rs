//! The `serve` command: puts the service together, runs it, and stops it in good order.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use console::{Console, ConsoleSettings};
use grounding::Grounder;
use runtimes::Pool;
use server::{Api, ApiSettings, Certificates, ListenerSettings, Ops, Phase, Timeouts, Tls, TrustedProxies};
use store::{Database, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::complaint::Complaint;
use crate::hosts::BothHosts;
use crate::reload::{self, Load, pool_settings};
use crate::settings::{Settings, environment_name};
use crate::stop::{StopSignals, catch};
use crate::traces::Traces;
use crate::{embedded, facts, log};

/// How long the first look at the runtimes may hold up the start.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// The console has few visitors at a time.
const CONSOLE_CONNECTIONS: usize = 256;
const CONSOLE_THREADS: usize = 2;
/// Probes and monitoring are few, and have their answers at once.
const OPS_CONNECTIONS: usize = 16;
const OPS_TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(5), idle: Duration::from_secs(75) };
const OPS_STOP: Duration = Duration::from_secs(1);
/// Open files that are kept for the database, the threads, refusals, health checks and monitoring.
const KEPT_FILES: u64 = 56;
/// What a write beyond the file-size limit raises; caught, the write becomes an error that the ledger can report.
const SIGXFSZ: i32 = 25;

pub(crate) fn serve(settings: &Settings, load: Load<'_>) -> Result<ExitCode, Complaint> {
    log::start(&settings.log);
    // Accepting, health checks and signals need little; requests are served by threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Complaint::new(format!("the service could not start: {error}")))?;
    runtime.block_on(run(settings, load))
}

async fn run(settings: &Settings, load: Load<'_>) -> Result<ExitCode, Complaint> {
    let (first_signal, second_signal) = (StopSignals::listen()?, StopSignals::listen()?);
    let reload_signal = catch(SignalKind::hangup())?;
    let _caught = catch(SignalKind::from_raw(SIGXFSZ))?;
    let certificates = open_certificates(settings)?;
    let tls = certificates.clone().map(Tls::with).transpose();
    let tls = tls.map_err(|error| Complaint::new(format!("TLS cannot be spoken: {error}")))?;
    let store = Arc::new(open_store(settings).await?);
    let mut doors = Doors::open(settings).await?;
    let (ledger, writer) = store.start_ledger(settings.retention)?;
    let pool = start_pool(settings).await;
    let grounder = facts::grounder(settings)?;
    let traces = Traces::start(settings)?;
    let greeting = greeting(settings, &doors, &store, pool.as_deref(), grounder.as_ref()).await?;
    let _ = writeln!(std::io::stdout(), "{greeting}"); // a service that nobody watches serves all the same

    let api = ApiSettings {
        address: settings.api_address.clone(),
        max_requests: settings.max_requests,
        body_idle: settings.body_timeout,
        log_requests: settings.log_requests,
        tracer: traces.tracer(),
    };
    let reloading = reload::on_signal(reload_signal, load, settings, pool.clone(), certificates.clone());
    if let Some(certificates) = certificates {
        tokio::spawn(certificates.watch());
    }
    let api = Api::new(api, store.clone(), ledger, pool, grounder);
    let (phase, phases) = watch::channel(Phase::Serving);
    let watchtower = doors.ops.take().map(|listener| Watchtower::open(listener, &api, &phases));
    tokio::spawn(first_signal.follow(settings.drain, phase));
    let served = async {
        let cut_off = doors.serve(settings, tls, api, store, phases).await;
        let cut_off = cut_off.map_err(|error| Complaint::new(format!("requests could not be served: {error}")))?;
        // On a thread that may block: a disk that hangs must not keep a second signal from being heard.
        let _ = tokio::task::spawn_blocking(|| writer.stop()).await;
        let _ = tokio::task::spawn_blocking(|| traces.stop()).await;
        if let Some(watchtower) = watchtower {
            watchtower.close().await;
        }
        if cut_off > 0 {
            tracing::warn!(connections = cut_off, "not everything under way could be finished in time");
        }
        log::finish();
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    };
    tokio::select! {
        biased; // signals first, so that the first one is counted before anything acts on it
        () = second_signal.second() => {
            tracing::warn!("stopped at once by a second signal");
            std::process::exit(130)
        }
        exit = served => exit,
        never = reloading => match never {},
    }
}

/// Where the service listens.
struct Doors {
    api: TcpListener,
    console: ConsoleDoor,
    /// For health and metrics, if they are wanted.
    ops: Option<TcpListener>,
}

enum ConsoleDoor {
    /// The console is not wanted.
    None,
    /// The API's address.
    Shared,
    Own(TcpListener),
}

impl Doors {
    async fn open(settings: &Settings) -> Result<Self, Complaint> {
        let api = listen(settings.api_listen, "api.listen").await?;
        let console = match settings.console_listen {
            None => ConsoleDoor::None,
            Some(address) if address == settings.api_listen && address.port() != 0 => ConsoleDoor::Shared,
            Some(address) => ConsoleDoor::Own(listen(address, "console.listen").await?),
        };
        let ops = match settings.ops_listen {
            None => None,
            Some(address) => Some(listen(address, "ops.listen").await?),
        };
        Ok(Self { api, console, ops })
    }

    /// The console's origin; with the port that the system chose, where it was asked to.
    fn console_origin(&self, settings: &Settings) -> String {
        let chosen = match (&self.console, settings.console_listen) {
            (ConsoleDoor::Own(listener), Some(asked)) if asked.port() == 0 => listener.local_addr().ok(),
            _ => None,
        };
        let origin = chosen.and_then(|address| {
            let mut url = url::Url::parse(&settings.console_base_url).ok()?;
            url.set_port(Some(address.port())).ok()?;
            Some(url.origin().ascii_serialization())
        });
        origin.unwrap_or_else(|| settings.console_base_url.clone())
    }

    /// Serves until the stop; says how many connections had to be cut off.
    async fn serve(
        self,
        settings: &Settings,
        tls: Option<Tls>,
        api: Arc<Api>,
        store: Arc<Store>,
        phase: watch::Receiver<Phase>,
    ) -> std::io::Result<usize> {
        let console = ConsoleSettings {
            host: settings.console_host.clone(),
            origin: self.console_origin(settings),
            api_base_url: settings.api_base_url.clone(),
            api_description: wire::openapi::document(&settings.api_base_url).to_string(),
        };
        let console = Console::new(console, store, api.clone());
        let connections = ListenerSettings {
            max_connections: connections_for(raise_file_limit(), settings.max_connections),
            threads: settings.api_threads,
            timeouts: Timeouts { head: settings.head_timeout, idle: settings.idle_timeout },
            stop: settings.stop_timeout,
            proxies: settings.trusted_proxies.clone(),
            tls,
        };
        match self.console {
            ConsoleDoor::None => server::serve(self.api, api, connections, phase).await,
            ConsoleDoor::Shared => {
                server::serve(self.api, Arc::new(BothHosts { api, console }), connections, phase).await
            }
            ConsoleDoor::Own(listener) => {
                let few = ListenerSettings {
                    max_connections: CONSOLE_CONNECTIONS.min(connections.max_connections),
                    threads: CONSOLE_THREADS,
                    ..connections.clone()
                };
                let (api, console) = tokio::join!(
                    server::serve(self.api, api, connections, phase.clone()),
                    server::serve(listener, console, few, phase),
                );
                Ok(api? + console?)
            }
        }
    }
}

/// From where health and metrics are told, until everything else has ended.
struct Watchtower {
    serving: JoinHandle<std::io::Result<usize>>,
    close: watch::Sender<Phase>,
}

impl Watchtower {
    fn open(listener: TcpListener, api: &Arc<Api>, phase: &watch::Receiver<Phase>) -> Self {
        let ops = Ops::new(api.clone(), phase.clone(), env!("CARGO_PKG_VERSION"));
        let few = ListenerSettings {
            max_connections: OPS_CONNECTIONS,
            threads: 1,
            timeouts: OPS_TIMEOUTS,
            stop: OPS_STOP,
            proxies: TrustedProxies::default(),
            tls: None,
        };
        let (close, closed) = watch::channel(Phase::Serving);
        Self { serving: tokio::spawn(server::serve(listener, ops, few, closed)), close }
    }

    async fn close(self) {
        self.close.send_replace(Phase::Stopping);
        let _ = self.serving.await; // nothing is lost with it
    }
}

/// Reads the certificates, if there are to be any.
pub(crate) fn open_certificates(settings: &Settings) -> Result<Option<Arc<Certificates>>, Complaint> {
    if settings.tls.is_empty() {
        return Ok(None);
    }
    let wrong =
        |error| Complaint::new(format!("TLS cannot be spoken: {error}. Correct `tls.certificate` or `tls.key`."));
    Certificates::open(settings.tls.clone()).map(Some).map_err(wrong)
}

/// Opens the database, with the data folder around it.
pub(crate) async fn open_store(settings: &Settings) -> Result<Store, Complaint> {
    make_folder(&settings.data_dir)?;
    let remedy = match &settings.database {
        Database::Sqlite(path) => {
            make_folder(path.parent().unwrap_or(&settings.data_dir))?;
            "Make it and its folder writable, or set `data_dir` to another folder."
        }
        Database::Postgres(_) => "Start the server, or correct `database_url` (ADRIATICUM_DATABASE_URL).",
    };
    let database = &settings.database;
    let opened = Store::open(database).await;
    opened.map_err(|error| {
        let remedy = match error {
            store::StoreError::FromTheFuture { .. } => {
                "Start that version, or restore the back-up from before the upgrade."
            }
            _ => remedy,
        };
        Complaint::new(format!("the database {database} cannot be opened: {error}. {remedy}"))
    })
}

/// Makes a folder if it is not there yet; what is in it is nobody else's business.
pub(crate) fn make_folder(folder: &Path) -> Result<(), Complaint> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        let folder = folder.display();
        Complaint::new(format!(
            "the data folder {folder} cannot be made: {error}. Make it writable, or set `data_dir` to another."
        ))
    })
}

async fn listen(address: SocketAddr, setting: &str) -> Result<TcpListener, Complaint> {
    TcpListener::bind(address).await.map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::AddrInUse => "Another program listens there: stop it",
            std::io::ErrorKind::PermissionDenied => "Ports below 1024 need a privilege: grant it",
            _ => "It must be an address of this machine: correct it",
        };
        let variable = environment_name(setting);
        Complaint::new(format!(
            "cannot listen on {address}: {error}. {remedy}, or set `{setting}` ({variable}) to another address."
        ))
    })
}

/// The pool, if there are runtimes to be reached, looked at once and watched from then on; or else the embedded one.
async fn start_pool(settings: &Settings) -> Option<Arc<Pool>> {
    if settings.runtime_urls.is_empty() {
        return embedded::start(settings);
    }
    let pool = Pool::new(pool_settings(settings));
    let _ = tokio::time::timeout(FIRST_LOOK, pool.look_up_names()).await;
    // Learns the members' model names before the first request; one that hangs is not waited for.
    let _ = tokio::time::timeout(FIRST_LOOK, pool.check()).await;
    tokio::spawn(pool.clone().watch());
    Some(pool)
}

/// What the person at the terminal is told: where everything is and what to do next.
async fn greeting(
    settings: &Settings,
    doors: &Doors,
    store: &Store,
    pool: Option<&Pool>,
    grounder: Option<&Grounder>,
) -> Result<String, Complaint> {
    let version = env!("CARGO_PKG_VERSION");
    let address = |listener: &TcpListener| {
        let address = listener.local_addr();
        address.map_err(|error| Complaint::new(format!("the listener is gone: {error}")))
    };
    let origin = doors.console_origin(settings);
    let mut lines = vec![
        format!("Adriaticum {version}"),
        format!("  API       {}  (listening on {})", settings.api_base_url, address(&doors.api)?),
    ];
    match &doors.console {
        ConsoleDoor::None => {}
        ConsoleDoor::Shared => lines.push(format!("  Console   {origin}  (the same address)")),
        ConsoleDoor::Own(listener) => {
            lines.push(format!("  Console   {origin}  (listening on {})", address(listener)?));
        }
    }
    if !matches!(doors.console, ConsoleDoor::None)
        && let Some(token) = store.set_up().await?
    {
        lines.push(format!("  Set up    {origin}/welcome/{}  (works once, for a day)", token.reveal()));
    }
    match pool {
        Some(_) if settings.runtime_urls.is_empty() => lines.push(format!("  Model     {}", model(settings))),
        Some(pool) => lines.extend(pool.status().into_iter().map(|member| {
            let model = member.model.map_or_else(|| "model not told".into(), |model| format!("model {model}"));
            format!("  Runtime   {}  ({model})", member.url)
        })),
        None => lines
            .push("  Runtime   none: completions get 503, because `model` is none and `runtime.urls` is empty".into()),
    }
    if let Some(grounder) = grounder.filter(|grounder| grounder.is_configured()) {
        lines.push(format!("  Search    {}  (grounding: {})", grounder.place(), facts::mode(settings)));
    }
    if let Some(listener) = &doors.ops {
        lines.push(format!("  Ops       http://{}  (health and metrics)", address(listener)?));
    }
    lines.push(format!("  Database  {}", settings.database));
    if store.count_keys().await? == 0 {
        let program = std::env::args().next().unwrap_or_else(|| "adriaticum".into());
        lines.push(format!("\nCreate the first API key, in another terminal, with: {program} keys create NAME"));
    }
    Ok(lines.join("\n"))
}

/// The embedded runtime's model, or how to get one.
fn model(settings: &Settings) -> String {
    let Some(file) = &settings.model else { return "none".into() };
    let file_name = file.display();
    match file.is_file() {
        true => file_name.to_string(),
        false => format!("{file_name} is not there: completions get 503 until `adriaticum model fetch` has got it"),
    }
}

/// Asks for as many open files as the system allows, and says how many that is.
fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current.unwrap_or(u64::MAX),
        Err(_) => before.unwrap_or(u64::MAX),
    }
}

/// How many connections those files are enough for: each may need another one to a runtime.
fn connections_for(files: u64, wanted: usize) -> usize {
    let possible = usize::try_from(files.saturating_sub(KEPT_FILES) / 2).unwrap_or(usize::MAX).max(1);
    if possible < wanted {
        tracing::warn!(
            files,
            connections = possible,
            "fewer connections than configured: the limit of open files is low"
        );
    }
    wanted.min(possible)
}
