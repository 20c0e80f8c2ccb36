//! The state that all workers of the API share, and the API's status for the ops listener and the console.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admission::Admission;
use chat::ApiKey;
use grounding::{Grounder, SearchOutage};
use http::Request;
use hyper::body::Incoming;
use opentelemetry_sdk::trace::SdkTracer;
use parking_lot::Mutex;
use runtimes::{Availability, EngineStatus, MemberStatus, Pool};
use store::{Client, Ledger, LedgerStats, Store};
use tokio::sync::Notify;
use transport::{BodyBudget, BodyLimits, ClientConnection, Rejection, Response, Site};

use crate::address::ApiAddress;
use crate::counters::{Counters, Totals};
use crate::handler::{handle, reject};
use crate::request_log::RequestLog;
use crate::worker::Worker;

#[derive(Debug, Clone)]
pub struct ApiSettings {
    pub address: ApiAddress,
    /// Admitted requests in flight.
    pub max_requests: usize,
    /// Bytes of bodies that requests may hold at the same time.
    pub max_body_memory: usize,
    /// Between two chunks of a body.
    pub body_idle_timeout: Duration,
    pub request_log: Option<Arc<dyn RequestLog>>,
    pub tracer: Option<SdkTracer>,
}

pub struct Api {
    pub(crate) address: ApiAddress,
    pub(crate) body_limits: BodyLimits,
    pub(crate) store: Arc<Store>,
    pub(crate) ledger: Ledger,
    pub(crate) admission: Admission<Client>,
    pub(crate) body_budget: BodyBudget<Client>,
    pub(crate) grounder: Option<Grounder>,
    pub(crate) request_log: Option<Arc<dyn RequestLog>>,
    pub(crate) tracer: Option<SdkTracer>,
    pool: Option<Arc<Pool>>,
    is_aborting: AtomicBool,
    /// Each worker's counters, and the notifier that aborts its requests.
    workers: Mutex<Vec<(Arc<Counters>, Arc<Notify>)>>,
}

impl Api {
    /// Without a pool, requests fail with the reason; without a grounder, no request is grounded.
    pub fn new(
        settings: ApiSettings,
        store: Arc<Store>,
        ledger: Ledger,
        pool: Option<Arc<Pool>>,
        grounder: Option<Grounder>,
    ) -> Arc<Self> {
        Arc::new(Self {
            address: settings.address,
            body_limits: BodyLimits::new(wire::MAX_BODY_BYTES, settings.body_idle_timeout),
            store,
            ledger,
            admission: Admission::new(settings.max_requests),
            body_budget: BodyBudget::new(settings.max_body_memory),
            grounder,
            request_log: settings.request_log,
            tracer: settings.tracer,
            pool,
            is_aborting: AtomicBool::new(false),
            workers: Mutex::default(),
        })
    }

    pub(crate) fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.clone()
    }

    pub(crate) fn register(&self, counters: Arc<Counters>, abort: Arc<Notify>) {
        self.workers.lock().push((counters, abort));
    }

    pub(crate) fn is_aborting(&self) -> bool {
        self.is_aborting.load(Ordering::SeqCst)
    }

    /// Whether a path is the API's base path or below it, on any host.
    pub fn covers(&self, path: &str) -> bool {
        self.address.covers(path)
    }

    pub fn health(&self) -> Health {
        Health {
            is_ledger_healthy: self.ledger.is_healthy(),
            availability: self.pool.as_ref().map_or(Availability::Unconfigured, |pool| pool.availability()),
            runtimes: self.pool.as_ref().map_or_else(Vec::new, |pool| pool.status()),
            search: self.grounder.as_ref().filter(|grounder| grounder.is_configured()).map(|grounder| SearchStatus {
                address: grounder.search_location(),
                outage: grounder.outage(),
                is_required: grounder.is_required(),
            }),
        }
    }

    /// Requests in flight, and their maximum.
    pub fn in_flight(&self) -> (usize, usize) {
        self.admission.usage()
    }

    /// Bytes of bodies that requests hold, and their maximum.
    pub fn body_memory(&self) -> (usize, usize) {
        self.body_budget.usage()
    }

    pub fn ledger_stats(&self) -> LedgerStats {
        self.ledger.stats()
    }

    /// The sums over all workers.
    pub fn totals(&self) -> Totals {
        Totals::from_counters(self.workers.lock().iter().map(|(counters, _)| counters.as_ref()))
    }

    /// The status of those runtimes that are our own engine.
    pub async fn engines(&self) -> Vec<(String, EngineStatus)> {
        match &self.pool {
            Some(pool) => pool.engines().await,
            None => Vec::new(),
        }
    }

    /// How long ago a runtime was last seen to decode a token.
    pub fn last_decoded(&self) -> Option<Duration> {
        self.pool.as_ref()?.last_decoded()
    }

    /// Looks up a key that does not exist, as every request looks up its own; `Err` is the reason of a failure.
    pub async fn probe_database(&self) -> Result<(), String> {
        let key = ApiKey::generate().map_err(|error| error.to_string())?;
        self.store.keys().authenticate(&key).await.map(drop).map_err(|error| error.to_string())
    }

    /// Requests one token from a runtime, outside of load balancing and the ledger; `Err` is the reason of a failure.
    pub async fn probe_runtime(&self) -> Result<(), String> {
        match &self.pool {
            Some(pool) => pool.probe().await,
            None => Err("no runtime is configured".into()),
        }
    }

    /// Sends Search a harmless query; `Err` is the reason of a failure.
    pub async fn probe_search(&self) -> Result<(), String> {
        match &self.grounder {
            Some(grounder) => grounder.probe().await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

/// The health of the parts behind the API.
#[derive(Debug, Clone)]
pub struct Health {
    /// Whether usage can be recorded.
    pub is_ledger_healthy: bool,
    pub availability: Availability,
    pub runtimes: Vec<MemberStatus>,
    /// If Search is configured.
    pub search: Option<SearchStatus>,
}

#[derive(Debug, Clone)]
pub struct SearchStatus {
    /// A URL without secrets, or `local`.
    pub address: String,
    /// Why requests that need facts fail, if they do.
    pub outage: Option<SearchOutage>,
    /// Whether every request needs Search.
    pub is_required: bool,
}

impl Site for Api {
    type Worker = Worker;

    const NAME: &str = "api";

    fn worker(self: &Arc<Self>) -> Worker {
        Worker::new(self.clone())
    }

    async fn handle(worker: &Worker, connection: ClientConnection, request: Request<Incoming>) -> Response {
        handle(worker, &connection, request).await
    }

    fn reject(worker: &Worker, why: Rejection) -> Response {
        reject(worker, why)
    }

    fn abort_in_flight(&self) {
        self.is_aborting.store(true, Ordering::SeqCst);
        self.workers.lock().iter().for_each(|(_, abort)| abort.notify_waiters());
    }
}
