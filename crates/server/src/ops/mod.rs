//! The ops listener: is the process alive, can it serve, and how is it. For probes and monitoring, not for callers.
//!
//! It is served by a thread of its own, apart from requests and beyond their end, so that it can tell of a service that
//! is overloaded or stopping. It changes nothing and holds no secret.

mod metrics;
mod readiness;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::watch;

use self::metrics::Metrics;
use self::readiness::Readiness;
use crate::answer::Answer;
use crate::api::Api;
use crate::phase::Phase;
use crate::site::Site;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// What is told about the service.
pub struct Ops {
    api: Arc<Api>,
    phase: watch::Receiver<Phase>,
    metrics: Metrics,
}

impl Ops {
    /// Tells of an API, and of how far the service has got.
    pub fn new(api: Arc<Api>, phase: watch::Receiver<Phase>, version: &'static str) -> Arc<Self> {
        let metrics = Metrics::new(api.clone(), phase.clone(), version);
        Arc::new(Self { api, phase, metrics })
    }

    fn readiness(&self) -> Answer {
        let readiness = Readiness::of(&self.api.health(), *self.phase.borrow());
        let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let parts = readiness.parts().iter().map(|part| (part.name, part.wrong));
        answer(status, JSON, wire::ops::readiness(readiness.is_ready(), parts))
    }
}

impl Site for Ops {
    type Desk = Arc<Self>;

    const NAME: &str = "ops";

    fn desk(self: &Arc<Self>) -> Arc<Self> {
        self.clone()
    }

    async fn answer(desk: &Arc<Self>, _visitor: IpAddr, request: Request<Incoming>) -> Answer {
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
            "/readyz" => desk.readiness(),
            _ => answer(StatusCode::OK, metrics::CONTENT_TYPE, desk.metrics.text()),
        }
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Answer::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
