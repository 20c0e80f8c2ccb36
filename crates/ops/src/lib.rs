//! The ops listener: is the process alive, can it serve, and how is it. For probes and monitoring, not for callers.
//!
//! It is served by a thread of its own, apart from requests and beyond their end, so that it can tell of a service that
//! is overloaded or stopping. It changes nothing and holds no secret. Whoever looks at the figures costs nobody anything;
//! whoever asks whether the service is ready may have a runtime decode a token, now and then.

mod encode;
mod metrics;
mod process;
mod proof;
mod readiness;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{Api, Health, reject, reject_foreign_host};
use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::watch;
use transport::{Certificates, Lifecycle, Rejection, Response, ResponseBody, Site};

use self::metrics::Metrics;
use self::proof::Proof;
use self::readiness::{Decodes, Readiness, nobody_to_ask};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// For how long a runtime that has completed something is believed to be able to.
const BELIEVED: Duration = Duration::from_secs(60);

/// What is told about the service.
pub struct Ops {
    api: Arc<Api>,
    phase: watch::Receiver<Lifecycle>,
    certificates: Option<Arc<Certificates>>,
    metrics: Metrics,
    runtime: Proof,
    search: Proof,
}

impl Ops {
    /// Tells of an API, of how far the service has got, and of the certificates that it speaks TLS with.
    pub fn new(
        api: Arc<Api>,
        phase: watch::Receiver<Lifecycle>,
        certificates: Option<Arc<Certificates>>,
        version: &'static str,
    ) -> Arc<Self> {
        let metrics = Metrics::new(version);
        Arc::new(Self { api, phase, certificates, metrics, runtime: Proof::none(), search: Proof::none() })
    }

    async fn readiness(&self) -> Response {
        let health = self.api.health();
        let phase = *self.phase.borrow();
        let decodes = self.decodes(&health, phase).await;
        let health = self.look_at_search(health, phase).await;
        let readiness = Readiness::of(&health, decodes, phase);
        let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let parts = readiness.parts().iter().map(|part| (part.name, part.wrong));
        respond(status, JSON, wire::ops::readiness(readiness.is_ready(), parts))
    }

    /// Whether a runtime decodes: one has done so a short while ago, or does so now, for nobody.
    async fn decodes(&self, health: &Health, phase: Lifecycle) -> Decodes {
        if self.has_decoded() || phase != Lifecycle::Serving || nobody_to_ask(health).is_some() {
            return Decodes::Yes;
        }
        let api = self.api.clone();
        match self.runtime.look("runtime", async move { api.probe_runtime().await }).await {
            Some(true) => Decodes::Yes,
            Some(false) => Decodes::No,
            None => Decodes::NotYetKnown,
        }
    }

    /// Where nothing is served without Search, no request would find out that it is back: it is asked from here.
    async fn look_at_search(&self, health: Health, phase: Lifecycle) -> Health {
        if phase != Lifecycle::Serving
            || health.search.as_ref().is_none_or(|search| search.is_healthy || !search.is_required)
        {
            return health;
        }
        let api = self.api.clone();
        self.search.look("search", async move { api.probe_search().await }).await;
        self.api.health()
    }

    fn has_decoded(&self) -> bool {
        self.api.last_decoded().is_some_and(|ago| ago < BELIEVED)
    }

    /// All figures. What `/readyz` has found out is told; nobody is asked to prove anything for them.
    async fn figures(&self) -> String {
        let engines = self.api.engines().await;
        let health = self.api.health();
        let decodes = if self.has_decoded() || self.runtime.last() != Some(false) { Decodes::Yes } else { Decodes::No };
        let readiness = Readiness::of(&health, decodes, *self.phase.borrow());
        let expiries = self.certificates.as_ref().map(|certificates| certificates.expiries()).unwrap_or_default();
        self.metrics.text(&self.api, health, readiness, engines, expiries)
    }
}

/// One thread's place at the ops listener.
pub struct OpsWorker {
    ops: Arc<Ops>,
    /// For requests that belong to the API, and are told so.
    api: api::Worker,
}

impl Site for Ops {
    type Worker = OpsWorker;

    const NAME: &str = "ops";

    const MAX_BODY_BYTES: usize = wire::MAX_BODY_BYTES;

    fn worker(self: &Arc<Self>) -> OpsWorker {
        OpsWorker { ops: self.clone(), api: api::Worker::new(self.api.clone()) }
    }

    fn reject(worker: &OpsWorker, why: Rejection) -> Response {
        reject(&worker.api, why)
    }

    async fn handle(worker: &OpsWorker, _client: IpAddr, request: Request<Incoming>) -> Response {
        if worker.ops.api.covers(request.uri().path()) {
            return reject_foreign_host(&worker.api, request);
        }
        let path = request.uri().path();
        if !["/healthz", "/readyz", "/metrics"].contains(&path) {
            return respond(StatusCode::NOT_FOUND, TEXT, "Adriaticum answers /healthz, /readyz and /metrics here.\n");
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refusal = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Only GET is answered here.\n");
            refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        match path {
            "/healthz" => respond(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => worker.ops.readiness().await,
            _ => respond(StatusCode::OK, metrics::CONTENT_TYPE, worker.ops.figures().await),
        }
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<ResponseBody>) -> Response {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
