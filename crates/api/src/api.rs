//! What every request of the API needs: the address it must be sent to, keys, ledger, runtimes, and room.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admission::Admission;
use chat::KeyId;
use grounding::Grounder;
use http::Request;
use hyper::body::Incoming;
use opentelemetry_sdk::trace::SdkTracer;
use runtimes::{Availability, EngineStatus, MemberStatus, Pool, PoolClient};
use store::{Ledger, LedgerFigures, Store};
use tokio::sync::Notify;
use transport::{BodyLimits, Rejection, Response, Site};

use crate::address::ApiAddress;
use crate::counters::{Counters, Totals};
use crate::meter::MeteredPoolClient;
use crate::request_log::RequestLog;
use crate::walk::{handle, reject};

/// What one may set about the API.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// Where it is served.
    pub address: ApiAddress,
    /// Requests under way at the most.
    pub max_requests: usize,
    /// How long a body may pause.
    pub body_idle: Duration,
    /// What is told of every request; `None` if nobody wants to know.
    pub request_log: Option<Arc<dyn RequestLog>>,
    /// What records spans; `None` if nobody collects them.
    pub tracer: Option<SdkTracer>,
}

/// The API: shared by every thread that serves it.
pub struct Api {
    pub(crate) address: ApiAddress,
    pub(crate) body_limits: BodyLimits,
    pub(crate) store: Arc<Store>,
    pub(crate) ledger: Ledger,
    pub(crate) room: Admission<KeyId>,
    /// What finds facts; `None` if nothing is to be grounded.
    pub(crate) grounder: Option<Grounder>,
    pub(crate) request_log: Option<Arc<dyn RequestLog>>,
    pub(crate) tracer: Option<SdkTracer>,
    pool: Option<Arc<Pool>>,
    cut_off: AtomicBool,
    /// Of every thread.
    counts: Mutex<Vec<Arc<Counters>>>,
    /// Of every thread: wakes its requests when they are cut off.
    cut_offs: Mutex<Vec<Arc<Notify>>>,
}

impl Api {
    /// Puts the API together. Without a pool it runs, unconfigured, and says so; without a grounder it grounds nothing.
    pub fn new(
        settings: ApiSettings,
        store: Arc<Store>,
        ledger: Ledger,
        pool: Option<Arc<Pool>>,
        grounder: Option<Grounder>,
    ) -> Arc<Self> {
        Arc::new(Self {
            address: settings.address,
            body_limits: BodyLimits::new(wire::MAX_BODY_BYTES, settings.body_idle),
            store,
            ledger,
            room: Admission::new(settings.max_requests),
            grounder,
            request_log: settings.request_log,
            tracer: settings.tracer,
            pool,
            cut_off: AtomicBool::new(false),
            counts: Mutex::default(),
            cut_offs: Mutex::default(),
        })
    }

    pub(crate) fn mark_cut_off(&self) {
        self.cut_off.store(true, Ordering::SeqCst);
        let cut_offs = self.cut_offs.lock().unwrap_or_else(PoisonError::into_inner);
        cut_offs.iter().for_each(|cut_off| cut_off.notify_waiters());
    }

    /// Whether a path is the API's or below it, on whatever host.
    pub fn covers(&self, path: &str) -> bool {
        self.address.covers(path)
    }

    /// How the parts behind the API are.
    pub fn health(&self) -> Health {
        Health {
            ledger: self.ledger.is_healthy(),
            availability: self.pool.as_ref().map_or(Availability::Unconfigured, |pool| pool.availability()),
            runtimes: self.pool.as_ref().map_or_else(Vec::new, |pool| pool.status()),
            search: self.grounder.as_ref().filter(|grounder| grounder.is_configured()).map(|grounder| SearchStatus {
                place: grounder.search_location(),
                working: grounder.is_healthy(),
                required: grounder.is_required(),
            }),
        }
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::SeqCst)
    }

    /// Requests in flight, and how many may be.
    pub fn in_flight(&self) -> (usize, usize) {
        self.room.usage()
    }

    pub fn ledger_figures(&self) -> LedgerFigures {
        self.ledger.figures()
    }

    /// What all threads together have counted.
    pub fn totals(&self) -> Totals {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(counts.iter().map(Arc::as_ref))
    }

    /// What those runtimes tell of themselves that are our own engine.
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

    /// Has a runtime decode a token for nobody; `Err` says why none did.
    pub async fn prove_runtime(&self) -> Result<(), String> {
        match &self.pool {
            Some(pool) => pool.probe().await,
            None => Err("there is none".into()),
        }
    }

    /// Asks Search something harmless; `Err` says why it did not answer.
    pub async fn prove_search(&self) -> Result<(), String> {
        match &self.grounder {
            Some(grounder) => grounder.probe().await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

/// How the parts behind the API are.
#[derive(Debug, Clone)]
pub struct Health {
    /// Whether usage can be recorded.
    pub ledger: bool,
    /// Whether there is a runtime at all.
    pub availability: Availability,
    /// How every runtime is.
    pub runtimes: Vec<MemberStatus>,
    /// How Search is, if facts are searched for.
    pub search: Option<SearchStatus>,
}

/// How Search is.
#[derive(Debug, Clone)]
pub struct SearchStatus {
    /// Where it is: a URL without secrets, or `local`.
    pub place: String,
    /// Whether it has answered properly of late.
    pub working: bool,
    /// Whether nothing at all is answered without it.
    pub required: bool,
}

/// One thread's place at the API: what is shared, its own connections to the runtimes, and its own counters.
pub struct Worker {
    pub(crate) api: Arc<Api>,
    pub(crate) pool_client: Option<MeteredPoolClient>,
    /// This thread's own.
    pub(crate) counts: Arc<Counters>,
    cut_off: Arc<Notify>,
}

impl Worker {
    /// A place for one more thread.
    pub fn new(api: Arc<Api>) -> Self {
        let pool_client = api.pool.clone().map(|pool| MeteredPoolClient::new(PoolClient::new(pool)));
        let counts = Arc::<Counters>::default();
        api.counts.lock().unwrap_or_else(PoisonError::into_inner).push(counts.clone());
        let cut_off = Arc::<Notify>::default();
        api.cut_offs.lock().unwrap_or_else(PoisonError::into_inner).push(cut_off.clone());
        Self { api, pool_client, counts, cut_off }
    }

    /// The API that this thread serves.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Ends when the time for finishing requests is over.
    pub(crate) async fn cut_off(&self) {
        let notified = self.cut_off.notified(); // from here on nothing is missed
        if !self.api.is_cut_off() {
            notified.await;
        }
    }
}

impl Site for Api {
    type Worker = Worker;

    const NAME: &str = "api";

    const MAX_BODY_BYTES: usize = wire::MAX_BODY_BYTES;

    fn worker(self: &Arc<Self>) -> Worker {
        Worker::new(self.clone())
    }

    async fn handle(worker: &Worker, _client: IpAddr, request: Request<Incoming>) -> Response {
        handle(worker, request).await
    }

    fn reject(worker: &Worker, why: Rejection) -> Response {
        reject(worker, why)
    }

    fn abort_in_flight(&self) {
        self.mark_cut_off();
    }
}
