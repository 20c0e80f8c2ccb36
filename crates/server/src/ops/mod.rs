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

use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::watch;

use self::metrics::Metrics;
use self::proof::Proof;
use self::readiness::{Decodes, Readiness, nobody_to_ask};
use crate::answer::Answer;
use crate::api::{Api, Desk, Health};
use crate::phase::Phase;
use crate::response_body::ResponseBody;
use crate::site::{Site, Unserved};
use crate::tls::Certificates;
use crate::walk::{refuse, refuse_elsewhere};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// For how long a runtime that has completed something is believed to be able to.
const BELIEVED: Duration = Duration::from_secs(60);

/// What is told about the service.
pub struct Ops {
    api: Arc<Api>,
    phase: watch::Receiver<Phase>,
    certificates: Option<Arc<Certificates>>,
    metrics: Metrics,
    runtime: Proof,
    search: Proof,
}

impl Ops {
    /// Tells of an API, of how far the service has got, and of the certificates that it speaks TLS with.
    pub fn new(
        api: Arc<Api>,
        phase: watch::Receiver<Phase>,
        certificates: Option<Arc<Certificates>>,
        version: &'static str,
    ) -> Arc<Self> {
        let metrics = Metrics::new(version);
        Arc::new(Self { api, phase, certificates, metrics, runtime: Proof::none(), search: Proof::none() })
    }

    async fn readiness(&self) -> Answer {
        let health = self.api.health();
        let phase = *self.phase.borrow();
        let decodes = self.decodes(&health, phase).await;
        let health = self.look_at_search(health, phase).await;
        let readiness = Readiness::of(&health, decodes, phase);
        let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let parts = readiness.parts().iter().map(|part| (part.name, part.wrong));
        answer(status, JSON, wire::ops::readiness(readiness.is_ready(), parts))
    }

    /// Whether a runtime decodes: one has done so a short while ago, or does so now, for nobody.
    async fn decodes(&self, health: &Health, phase: Phase) -> Decodes {
        if self.has_decoded() || phase != Phase::Serving || nobody_to_ask(health).is_some() {
            return Decodes::Yes;
        }
        let api = self.api.clone();
        match self.runtime.look("runtime", async move { api.prove_runtime().await }).await {
            Some(true) => Decodes::Yes,
            Some(false) => Decodes::No,
            None => Decodes::NotYetKnown,
        }
    }

    /// Where nothing is served without Search, no request would find out that it is back: it is asked from here.
    async fn look_at_search(&self, health: Health, phase: Phase) -> Health {
        if phase != Phase::Serving || health.search.as_ref().is_none_or(|search| search.working || !search.required) {
            return health;
        }
        let api = self.api.clone();
        self.search.look("search", async move { api.prove_search().await }).await;
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
pub struct OpsDesk {
    ops: Arc<Ops>,
    /// For requests that belong to the API, and are told so.
    api: Desk,
}

impl Site for Ops {
    type Desk = OpsDesk;

    const NAME: &str = "ops";

    fn desk(self: &Arc<Self>) -> OpsDesk {
        OpsDesk { ops: self.clone(), api: Desk::new(self.api.clone()) }
    }

    fn refuse(desk: &OpsDesk, why: Unserved) -> Answer {
        refuse(&desk.api, why)
    }

    async fn answer(desk: &OpsDesk, _visitor: IpAddr, request: Request<Incoming>) -> Answer {
        if desk.ops.api.covers(request.uri().path()) {
            return refuse_elsewhere(&desk.api, request);
        }
        let path = request.uri().path();
        if !["/healthz", "/readyz", "/metrics"].contains(&path) {
            return answer(StatusCode::NOT_FOUND, TEXT, "Adriaticum answers /healthz, /readyz and /metrics here.\n");
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refusal = answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Only GET is answered here.\n");
            refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        match path {
            "/healthz" => answer(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => desk.ops.readiness().await,
            _ => answer(StatusCode::OK, metrics::CONTENT_TYPE, desk.ops.figures().await),
        }
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: impl Into<ResponseBody>) -> Answer {
    let mut answer = Answer::new(body.into());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
