//! The `serve` command: puts the service together, runs it, and stops it in good order.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use api::{Api, ApiAddress, ApiSettings};
use ops::Ops;
use runtimes::Pool;
use store::{Database, Store};
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use transport::{Certificates, Lifecycle, ListenerSettings, Timeouts, Tls, TrustedProxies};

use crate::doors::{Door, Doors};
use crate::error::CliError;
use crate::greeting::Greeting;
use crate::log::RequestLines;
use crate::reload::{self, Load, pool_settings};
use crate::settings::{Settings, environment_name};
use crate::stop::{StopSignals, catch};
use crate::traces::Traces;
use crate::{embedded, facts, log};

/// How long the first look at the runtimes may hold up the start.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// Probes and monitoring are few, and have their answers at once.
const OPS_CONNECTIONS: usize = 16;
const OPS_TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(5), idle: Duration::from_secs(75) };
const OPS_STOP: Duration = Duration::from_secs(1);
/// What a write beyond the file-size limit raises; caught, the write becomes an error that the ledger can report.
const SIGXFSZ: i32 = 25;

pub(crate) fn serve(settings: &Settings, load: Load<'_>, first_key: bool) -> Result<ExitCode, CliError> {
    log::start(&settings.log);
    // Accepting, health checks and signals need little; requests are served by threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::new(format!("the service could not start: {error}")))?;
    runtime.block_on(run(settings, load, first_key))
}

async fn run(settings: &Settings, load: Load<'_>, first_key: bool) -> Result<ExitCode, CliError> {
    let (first_signal, second_signal) = (StopSignals::listen()?, StopSignals::listen()?);
    let reload_signal = catch(SignalKind::hangup())?;
    let _caught = catch(SignalKind::from_raw(SIGXFSZ))?;
    let certificates = open_certificates(settings)?;
    let tls = certificates.clone().map(Tls::with_certificates).transpose();
    let tls = tls.map_err(|error| CliError::new(format!("TLS cannot be spoken: {error}")))?;
    let store = Arc::new(open_store(settings).await?);
    let mut doors = Doors::open(settings).await?;
    let (ledger, writer) = store.start_ledger(settings.retention)?;
    let backing = start_pool(settings).await;
    let grounder = facts::grounder(settings)?;
    let traces = Traces::start(settings)?;
    let greeting = Greeting::prepare(settings, &doors, &store, first_key).await?;
    greeting.tell(settings, &doors, &backing, grounder.as_ref());
    let pool = backing.pool;
    tokio::spawn(greeting.invite(doors.api_base_url(settings), pool.clone()));

    let lines = RequestLines::start(settings.log_requests);
    let api = ApiSettings {
        address: api_address(settings, &doors)?,
        max_requests: settings.max_requests,
        body_idle: settings.body_timeout,
        request_log: lines.clone().map(|lines| lines as _),
        tracer: traces.tracer(),
    };
    let reloading = reload::on_signal(reload_signal, load, settings, pool.clone(), certificates.clone());
    if let Some(certificates) = certificates.clone() {
        tokio::spawn(certificates.watch());
    }
    let api = Api::new(api, store.clone(), ledger, pool, grounder);
    let (lifecycle, lifecycles) = watch::channel(Lifecycle::Serving);
    let watchtower = doors.ops.take().map(|door| Watchtower::open(door, &api, &lifecycles, certificates));
    tokio::spawn(first_signal.follow(settings.drain, lifecycle));
    let served = async {
        let cut_off = doors.serve(settings, tls, api, store, lifecycles).await;
        let cut_off = cut_off.map_err(|error| CliError::new(format!("requests could not be served: {error}")))?;
        // On a thread that may block: a disk that hangs must not keep a second signal from being heard.
        let _ = tokio::task::spawn_blocking(|| writer.stop()).await;
        let _ = tokio::task::spawn_blocking(|| traces.stop()).await;
        if let Some(watchtower) = watchtower {
            watchtower.close().await;
        }
        if cut_off > 0 {
            tracing::warn!(connections = cut_off, "not everything under way could be finished in time");
        }
        if let Some(lines) = lines {
            lines.finish();
        }
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

/// From where health and metrics are told, until everything else has ended.
struct Watchtower {
    serving: JoinHandle<std::io::Result<usize>>,
    close: watch::Sender<Lifecycle>,
}

impl Watchtower {
    fn open(
        door: Door,
        api: &Arc<Api>,
        lifecycle: &watch::Receiver<Lifecycle>,
        certificates: Option<Arc<Certificates>>,
    ) -> Self {
        let ops = Ops::new(api.clone(), lifecycle.clone(), certificates, env!("CARGO_PKG_VERSION"));
        let few = ListenerSettings {
            max_connections: OPS_CONNECTIONS,
            threads: 1,
            timeouts: OPS_TIMEOUTS,
            stop_timeout: OPS_STOP,
            proxies: TrustedProxies::default(),
            tls: None,
        };
        let (close, closed) = watch::channel(Lifecycle::Serving);
        Self { serving: tokio::spawn(transport::serve(door.listener, ops, few, closed)), close }
    }

    async fn close(self) {
        self.close.send_replace(Lifecycle::Stopping);
        let _ = self.serving.await; // nothing is lost with it
    }
}

/// Where the API is served, with the port that it really has.
fn api_address(settings: &Settings, doors: &Doors) -> Result<ApiAddress, CliError> {
    let base_url = doors.api_base_url(settings);
    ApiAddress::from_base_url(&base_url)
        .map_err(|error| CliError::new(format!("`api.base_url` cannot be used: {error}")))
}

/// Reads the certificates, if there are to be any.
pub(crate) fn open_certificates(settings: &Settings) -> Result<Option<Arc<Certificates>>, CliError> {
    if settings.tls.is_empty() {
        return Ok(None);
    }
    let wrong =
        |error| CliError::new(format!("TLS cannot be spoken: {error}. Correct `tls.certificate` or `tls.key`."));
    Certificates::load(settings.tls.clone()).map(Some).map_err(wrong)
}

/// Opens the database, with the data folder around it.
pub(crate) async fn open_store(settings: &Settings) -> Result<Store, CliError> {
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
        CliError::new(format!("the database {database} cannot be opened: {error}. {remedy}"))
    })
}

/// Makes a folder if it is not there yet; what is in it is nobody else's business.
pub(crate) fn make_folder(folder: &Path) -> Result<(), CliError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => "There is a file of that name: move it away",
            _ => "Make the folder around it writable",
        };
        let (folder, variable) = (folder.display(), environment_name("data_dir"));
        CliError::new(format!(
            "the data folder {folder} cannot be made: {error}. {remedy}, or set `data_dir` ({variable}) to another."
        ))
    })
}

/// What answers requests, as it was seen at the start.
pub(crate) struct Backing {
    /// None if nothing is to answer.
    pub(crate) pool: Option<Arc<Pool>>,
    /// What is wrong with members, or why nobody knows.
    pub(crate) faults: Vec<(String, String)>,
}

/// The pool, if there are runtimes to be reached, looked at once and watched from then on; or else the embedded one.
async fn start_pool(settings: &Settings) -> Backing {
    if settings.runtime_urls.is_empty() {
        return Backing { pool: embedded::start(settings), faults: Vec::new() };
    }
    let pool = Pool::new(pool_settings(settings));
    let _ = tokio::time::timeout(FIRST_LOOK, pool.resolve_names()).await;
    // Learns the members' model names before the first request; one that hangs is not waited for.
    let found = tokio::time::timeout(FIRST_LOOK, pool.check()).await;
    let faults = match found {
        Ok(found) => found.into_iter().filter_map(|(name, found)| Some((name, found.err()?.to_string()))).collect(),
        Err(_) => Vec::new(),
    };
    tokio::spawn(pool.clone().watch());
    Backing { pool: Some(pool), faults }
}
