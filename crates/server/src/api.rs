//! What every request of the API needs: the address it must be sent to, keys, ledger, runtimes, and room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chat::KeyId;
use grounding::Grounder;
use runtimes::{Availability, Lane, MemberStatus, Pool};
use store::{Ledger, Store};

use crate::admission::Admission;
use crate::body::BodyTimeouts;
use crate::host::ApiAddress;
use crate::meter::MeteredLane;

/// What one may set about the API.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// Where it is served.
    pub address: ApiAddress,
    /// Requests under way at the most.
    pub max_requests: usize,
    /// How long a body may pause.
    pub body_idle: std::time::Duration,
}

/// The API: shared by every thread that serves it.
pub struct Api {
    pub(crate) address: ApiAddress,
    pub(crate) body_timeouts: BodyTimeouts,
    pub(crate) store: Arc<Store>,
    pub(crate) ledger: Ledger,
    pub(crate) room: Admission<KeyId>,
    /// What finds facts; `None` if nothing is to be grounded.
    pub(crate) grounder: Option<Grounder>,
    pool: Option<Arc<Pool>>,
    cut_off: AtomicBool,
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
            body_timeouts: BodyTimeouts::with_idle(settings.body_idle),
            store,
            ledger,
            room: Admission::new(settings.max_requests),
            grounder,
            pool,
            cut_off: AtomicBool::new(false),
        })
    }

    pub(crate) fn mark_cut_off(&self) {
        self.cut_off.store(true, Ordering::Relaxed);
    }

    /// How the parts behind the API are.
    pub fn health(&self) -> Health {
        Health {
            ledger: self.ledger.is_healthy(),
            availability: self.pool.as_ref().map_or(Availability::Unconfigured, |pool| pool.availability()),
            runtimes: self.pool.as_ref().map_or_else(Vec::new, |pool| pool.status()),
            search: self
                .grounder
                .as_ref()
                .filter(|grounder| grounder.is_configured())
                .map(|grounder| SearchStatus { place: grounder.place(), working: grounder.is_working() }),
        }
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
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
}

/// One thread's place at the API: what is shared, and its own connections to the runtimes.
pub struct Desk {
    pub(crate) api: Arc<Api>,
    pub(crate) lane: Option<MeteredLane>,
}

impl Desk {
    /// A place for one more thread.
    pub fn new(api: Arc<Api>) -> Self {
        let lane = api.pool.clone().map(|pool| MeteredLane::new(Lane::new(pool)));
        Self { api, lane }
    }
}
