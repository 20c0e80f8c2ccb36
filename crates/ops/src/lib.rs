//! The ops listener: liveness, readiness and metrics. For probes and monitoring, not for callers.
//!
//! It has a separate thread that outlives the other listeners, so it answers while the service is overloaded or stopping.
//! It changes nothing and holds no secret. Reading metrics costs runtimes nothing; a readiness check may make one of them
//! decode a token from time to time.

mod alerts;
mod encode;
mod metrics;
mod probe;
mod process;
mod readiness;
mod tables;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{Api, Health, reject, reject_foreign_host};
use histogram::Counters;
use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::watch;
use transport::{Certificates, ClientConnection, Lifecycle, Rejection, Response, ResponseBody, Site};

pub use self::alerts::AlertCounters;
use self::metrics::{Scrape, since_1970};
use self::probe::Probe;
use self::process::Process;
use self::readiness::{Readiness, no_runtime_available};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// A runtime that decoded a token within this time needs no probe.
const PROBE_FREE: Duration = Duration::from_secs(60);

pub struct Ops {
    api: Arc<Api>,
    lifecycle: watch::Receiver<Lifecycle>,
    certificates: Option<Arc<Certificates>>,
    /// To the console, by outcome.
    sign_ins: Arc<Counters<3>>,
    alerts: Arc<AlertCounters>,
    version: &'static str,
    started: f64,
    database: Probe,
    runtime: Probe,
    search: Probe,
}

impl Ops {
    pub fn new(
        api: Arc<Api>,
        lifecycle: watch::Receiver<Lifecycle>,
        certificates: Option<Arc<Certificates>>,
        sign_ins: Arc<Counters<3>>,
        alerts: Arc<AlertCounters>,
        version: &'static str,
    ) -> Arc<Self> {
        let started = since_1970(SystemTime::now());
        let (database, runtime, search) = (Probe::new(), Probe::new(), Probe::new());
        Arc::new(Self { api, lifecycle, certificates, sign_ins, alerts, version, started, database, runtime, search })
    }

    async fn readiness(&self) -> Response {
        let health = self.api.health();
        let lifecycle = *self.lifecycle.borrow();
        let api = self.api.clone();
        let database = self.database.run("database", async move { api.probe_database().await });
        let (database, decodes) = tokio::join!(database, self.decodes(&health, lifecycle));
        let health = self.probe_search(health, lifecycle).await;
        let readiness = Readiness::new(&health, database, decodes, lifecycle);
        let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let parts = readiness.parts().iter().map(|part| (part.name, part.problem.as_deref()));
        respond(status, JSON, wire::ops::readiness(readiness.is_ready(), parts))
    }

    /// Whether a runtime decodes: it did so recently, or does so now for a probe. `None` while the probe is running.
    async fn decodes(&self, health: &Health, lifecycle: Lifecycle) -> Option<bool> {
        if self.has_decoded() || lifecycle != Lifecycle::Serving || no_runtime_available(health).is_some() {
            return Some(true);
        }
        let api = self.api.clone();
        self.runtime.run("runtime", async move { api.probe_runtime().await }).await
    }

    /// If every request needs Search, none is served while it is down, so no request would detect its recovery.
    async fn probe_search(&self, health: Health, lifecycle: Lifecycle) -> Health {
        if lifecycle != Lifecycle::Serving
            || health.search.as_ref().is_none_or(|search| search.outage.is_none() || !search.is_required)
        {
            return health;
        }
        let api = self.api.clone();
        self.search.run("search", async move { api.probe_search().await }).await;
        self.api.health()
    }

    fn has_decoded(&self) -> bool {
        self.api.last_decoded().is_some_and(|ago| ago < PROBE_FREE)
    }

    /// Uses the last result of `/readyz`; starts no probe.
    async fn metrics(&self) -> String {
        let engines = self.api.engines().await;
        let health = self.api.health();
        let decodes = self.has_decoded() || self.runtime.last() != Some(false);
        let readiness = Readiness::new(&health, self.database.last(), Some(decodes), *self.lifecycle.borrow());
        let scrape = Scrape {
            version: self.version,
            started: self.started,
            process: Process::now(),
            health,
            readiness,
            in_flight: self.api.in_flight(),
            body_memory: self.api.body_memory(),
            totals: self.api.totals(),
            ledger: self.api.ledger_stats(),
            engines,
            sign_ins: self.sign_ins.read(),
            alerts: self.alerts.clone(),
            expiries: self.certificates.as_ref().map(|certificates| certificates.expiries()).unwrap_or_default(),
        };
        scrape.into_text()
    }
}

pub struct OpsWorker {
    ops: Arc<Ops>,
    /// Responds to requests that belong to the API.
    api: api::Worker,
}

impl Site for Ops {
    type Worker = OpsWorker;

    const NAME: &str = "ops";

    fn worker(self: &Arc<Self>) -> OpsWorker {
        OpsWorker { ops: self.clone(), api: api::Worker::new(self.api.clone()) }
    }

    fn reject(worker: &OpsWorker, why: Rejection) -> Response {
        reject(&worker.api, why)
    }

    async fn handle(worker: &OpsWorker, connection: ClientConnection, request: Request<Incoming>) -> Response {
        connection.identify(); // only monitoring reaches this listener
        if worker.ops.api.covers(request.uri().path()) {
            return reject_foreign_host(&worker.api, request);
        }
        let path = request.uri().path();
        if !["/healthz", "/readyz", "/metrics"].contains(&path) {
            return respond(StatusCode::NOT_FOUND, TEXT, "Adriaticum answers /healthz, /readyz and /metrics here.\n");
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Only GET is answered here.\n");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/healthz" => respond(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => worker.ops.readiness().await,
            _ => respond(StatusCode::OK, metrics::CONTENT_TYPE, worker.ops.metrics().await),
        }
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<ResponseBody>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
