//! The `serve` command: composes the service, runs it and stops it in order.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ::grounding::index::Indexer;
use api::{Api, ApiAddress, ApiSettings};
use console::{SIGN_IN_OUTCOMES, SignInCounters};
use ops::{AlertCounters, Ops};
use runtimes::Pool;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use transport::{Certificates, Lifecycle, ListenerSettings, Timeouts, Tls, TrustedProxies};

use crate::alerts::Alerts;
use crate::banner::Banner;
use crate::error::CliError;
use crate::listeners::{Listener, Listeners};
use crate::log::RequestLogWriter;
use crate::reload::{self, LoadSettings, pool_settings};
use crate::running::RunningService;
use crate::settings::Settings;
use crate::shutdown::{StopSignals, catch};
use crate::storage::open_store;
use crate::traces::Traces;
use crate::webhook::Webhook;
use crate::{embedded, embedder, grounding, log};

/// How long the first check of the runtimes may delay the start.
const FIRST_CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// Probes and monitoring send few requests, which are answered immediately.
const OPS_MAX_CONNECTIONS: usize = 16;
const OPS_TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(5), idle: Duration::from_secs(75) };
const OPS_STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Raised by a write beyond the file-size limit. If it is caught, the write fails with an error for the ledger.
const SIGXFSZ: i32 = 25;

pub(crate) fn serve(settings: &Settings, load: LoadSettings<'_>, first_key: bool) -> Result<ExitCode, CliError> {
    log::start(&settings.log);
    // This thread accepts connections, checks health and waits for signals. Requests are served by worker threads.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::new(format!("the service could not start: {error}")))?;
    runtime.block_on(run(settings, load, first_key))
}

async fn run(settings: &Settings, load: LoadSettings<'_>, first_key: bool) -> Result<ExitCode, CliError> {
    let (first_signal, second_signal) = (StopSignals::listen()?, StopSignals::listen()?);
    let reload_signal = catch(SignalKind::hangup())?;
    let _file_size_signal = catch(SignalKind::from_raw(SIGXFSZ))?;
    let certificates = open_certificates(settings)?;
    let tls = certificates.clone().map(Tls::with_certificates).transpose();
    let tls = tls.map_err(|error| CliError::new(format!("TLS cannot be set up: {error}")))?;
    let webhook = Webhook::new(settings)?;
    let store = Arc::new(open_store(settings).await?);
    let mut listeners = Listeners::bind(settings).await?;
    let _running = RunningService::announce(&settings.data_dir, &listeners.addresses()).inspect_err(
        |error| tracing::warn!(%error, "the data folder cannot be written: `check` will not recognize this service"),
    );
    let (ledger, writer) = store.start_ledger(settings.ledger.retention)?;
    let backend = start_backend(settings).await;
    let indexer = Indexer::new(settings.index_folder());
    let (expected_index, expected) = watch::channel(grounding::expected_index(&store, &indexer).await?);
    let grounder = grounding::grounder(settings, expected, embedder::of_service(settings).await?)?;
    tokio::spawn(grounding::follow_expected_index(store.clone(), indexer, expected_index));
    let traces = Traces::start(settings)?;
    let banner = Banner::prepare(settings, &listeners, &store, first_key).await?;
    banner.print(settings, &listeners, &backend, grounder.as_ref());
    let pool = backend.pool;
    tokio::spawn(banner.print_when_ready(listeners.api_base_url(settings), pool.clone()));

    let request_log = RequestLogWriter::start(settings.api.log_requests);
    let api = ApiSettings {
        address: api_address(settings, &listeners)?,
        max_requests: settings.api.max_requests,
        max_body_memory: settings.api.max_body_memory,
        body_idle_timeout: settings.api.body_timeout,
        request_log: request_log.clone().map(|log| log as _),
        tracer: traces.tracer(),
    };
    let reloading = reload::on_signal(reload_signal, load, settings, pool.clone(), certificates.clone());
    if let Some(certificates) = certificates.clone() {
        tokio::spawn(certificates.watch());
    }
    let api = Api::new(api, store.clone(), ledger, pool, grounder);
    let (lifecycle, lifecycle_receiver) = watch::channel(Lifecycle::Serving);
    let sign_ins = Arc::new(SignInCounters::new(SIGN_IN_OUTCOMES));
    let counters = Arc::new(AlertCounters::default());
    tokio::spawn(Alerts::new(store.clone(), webhook, counters.clone()).run());
    let version = env!("CARGO_PKG_VERSION");
    let ops = Ops::new(api.clone(), lifecycle_receiver.clone(), certificates, sign_ins.clone(), counters, version);
    let console = listeners.console(settings, &api, store, sign_ins)?;
    let ops_server = listeners.ops.take().map(|listener| OpsServer::start(listener, ops));
    tokio::spawn(first_signal.run(settings.api.drain, lifecycle));
    let served = async {
        let cut_off = listeners.serve(settings, tls, api, console, lifecycle_receiver).await;
        let cut_off = cut_off.map_err(|error| CliError::new(format!("requests could not be served: {error}")))?;
        // On a blocking thread, so that a second signal is still handled while a disk hangs.
        let _ = tokio::task::spawn_blocking(|| writer.stop()).await;
        let _ = tokio::task::spawn_blocking(|| traces.stop()).await;
        if let Some(ops_server) = ops_server {
            ops_server.stop().await;
        }
        if cut_off > 0 {
            tracing::warn!(connections = cut_off, "some requests in flight were cut off by the stop timeout");
        }
        if let Some(request_log) = request_log {
            request_log.flush();
        }
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    };
    tokio::select! {
        biased; // signals first, so that the first one is counted before the stop begins
        () = second_signal.wait_for_second() => {
            tracing::warn!("stopped immediately by a second signal");
            std::process::exit(130)
        }
        exit = served => exit,
        never = reloading => match never {},
    }
}

/// Serves health and metrics. It stops last, so that the stop can be monitored.
struct OpsServer {
    task: JoinHandle<std::io::Result<usize>>,
    lifecycle: watch::Sender<Lifecycle>,
}

impl OpsServer {
    fn start(listener: Listener, ops: Arc<Ops>) -> Self {
        let settings = ListenerSettings {
            max_connections: OPS_MAX_CONNECTIONS,
            threads: 1,
            timeouts: OPS_TIMEOUTS,
            stop_timeout: OPS_STOP_TIMEOUT,
            proxies: TrustedProxies::default(),
            tls: None,
        };
        let (lifecycle, receiver) = watch::channel(Lifecycle::Serving);
        Self { task: tokio::spawn(transport::serve(listener.socket, ops, settings, receiver)), lifecycle }
    }

    async fn stop(self) {
        self.lifecycle.send_replace(Lifecycle::Stopping);
        let _ = self.task.await; // its result does not matter
    }
}

fn api_address(settings: &Settings, listeners: &Listeners) -> Result<ApiAddress, CliError> {
    let base_url = listeners.api_base_url(settings);
    ApiAddress::from_base_url(&base_url)
        .map_err(|error| CliError::new(format!("`api.base_url` cannot be used: {error}")))
}

/// Reads the certificates; none if `tls.certificate` is not set.
pub(crate) fn open_certificates(settings: &Settings) -> Result<Option<Arc<Certificates>>, CliError> {
    if settings.tls.certificate.is_empty() {
        return Ok(None);
    }
    let wrong =
        |error| CliError::new(format!("TLS cannot be set up: {error}. Correct `tls.certificate` or `tls.key`."));
    Certificates::load(settings.certificate_files()).map(Some).map_err(wrong)
}

/// The runtimes that complete requests, as found at the start.
pub(crate) struct Backend {
    /// None if neither a model nor a runtime is configured.
    pub(crate) pool: Option<Arc<Pool>>,
    /// Members that failed their first check, each with the reason.
    pub(crate) faults: Vec<(String, String)>,
}

/// Starts the pool of `runtime.urls` and its health checks, or else the embedded runtime.
async fn start_backend(settings: &Settings) -> Backend {
    if settings.runtime.urls.is_empty() {
        return Backend { pool: embedded::start(settings), faults: Vec::new() };
    }
    let pool = Pool::new(pool_settings(settings));
    let _ = tokio::time::timeout(FIRST_CHECK_TIMEOUT, pool.resolve_names()).await;
    // Learns the members' model names before the first request. A member that hangs is not waited for.
    let checked = tokio::time::timeout(FIRST_CHECK_TIMEOUT, pool.check()).await;
    let faults = match checked {
        Ok(found) => found.into_iter().filter_map(|(name, result)| Some((name, result.err()?.to_string()))).collect(),
        Err(_) => Vec::new(),
    };
    tokio::spawn(pool.clone().watch());
    Backend { pool: Some(pool), faults }
}
