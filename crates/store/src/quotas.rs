//! Lets callers in whose requests per minute or in flight are limited. With SQLite this process is the only one, and counts
//! in memory. With PostgreSQL replicas share one truth (`postgres::quotas`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::clock::StoreClock;
use crate::limits::CallerLimits;
use crate::quota::{Grant, Lacks, LimitReached, LocalQuota, QuotaLimits, SharedQuota, Start, reached};
use crate::scope::Scope;
use crate::{Store, StoreError};

/// What another replica holds may come back soon.
const RETRIES: u32 = 4;
const HOLD_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Why a request may not start.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    #[error("a limit is reached")]
    Reached(LimitReached),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Counts a request as in flight until it is dropped, and as started from `start` on.
#[derive(Default)]
#[must_use]
pub struct LimitPermit {
    entered: [Option<(Arc<ScopeQuota>, Start)>; 3],
    is_started: bool,
}

impl LimitPermit {
    /// Nothing else keeps the request from starting.
    pub fn start(&mut self) {
        self.is_started = true;
    }
}

impl Drop for LimitPermit {
    fn drop(&mut self) {
        for (quota, start) in self.entered.iter().flatten() {
            let mut local = quota.local.lock();
            if self.is_started { local.leave() } else { local.undo(*start) }
        }
    }
}

/// What this process has of one scope's quota.
pub(crate) struct ScopeQuota {
    pub(crate) scope: Scope,
    pub(crate) local: Mutex<LocalQuota>,
}

/// To whoever shares out.
pub(crate) struct QuotaQuestion {
    pub(crate) quota: Arc<ScopeQuota>,
    pub(crate) limits: QuotaLimits,
    pub(crate) reply: oneshot::Sender<Result<Grant, StoreError>>,
}

pub(crate) struct Quotas {
    by_scope: Mutex<HashMap<Scope, Arc<ScopeQuota>>>,
    shared: Shared,
}

enum Shared {
    Memory(Mutex<HashMap<Scope, SharedQuota>>),
    Database(UnboundedSender<QuotaQuestion>),
}

impl Quotas {
    pub(crate) fn in_memory() -> Self {
        Self { by_scope: Mutex::default(), shared: Shared::Memory(Mutex::default()) }
    }

    pub(crate) fn shared(questions: UnboundedSender<QuotaQuestion>) -> Self {
        Self { by_scope: Mutex::default(), shared: Shared::Database(questions) }
    }

    fn of(&self, scope: Scope) -> Arc<ScopeQuota> {
        let new = || Arc::new(ScopeQuota { scope, local: Mutex::default() });
        self.by_scope.lock().entry(scope).or_insert_with(new).clone()
    }

    async fn enter(
        &self,
        quota: &Arc<ScopeQuota>,
        limits: QuotaLimits,
        clock: &StoreClock,
    ) -> Result<Start, EnterError> {
        let questions = match &self.shared {
            Shared::Memory(all) => return enter_alone(all, quota, limits, clock).map_err(EnterError::Reached),
            Shared::Database(questions) => questions,
        };
        let mut retries = 0;
        loop {
            if let Ok(start) = quota.local.lock().enter(clock.now(), limits) {
                return Ok(start);
            }
            let grant = ask(questions, quota, limits).await?;
            let entered = quota.local.lock().enter(clock.now(), limits);
            let lacks = match entered {
                Ok(start) => return Ok(start),
                Err(lacks) => lacks,
            };
            // What was granted may have gone to a request that came in between.
            let is_refused = grant.lacks_starts && lacks == Lacks::Start;
            if is_refused || retries == RETRIES {
                return Err(EnterError::Reached(reached(quota.scope, limits, &grant, lacks)));
            }
            retries += 1;
            if grant.lacks_hold {
                tokio::time::sleep(HOLD_RETRY_INTERVAL).await;
            }
        }
    }
}

/// Where no other process counts.
fn enter_alone(
    all: &Mutex<HashMap<Scope, SharedQuota>>,
    quota: &ScopeQuota,
    limits: QuotaLimits,
    clock: &StoreClock,
) -> Result<Start, LimitReached> {
    let (mut all, mut local) = (all.lock(), quota.local.lock());
    let (now, shared) = (clock.now(), all.entry(quota.scope).or_default());
    let grant = shared.grant(now, limits, 0, local.ask_alone(now, limits));
    local.receive(now, &grant);
    local.enter(now, limits).map_err(|lacks| reached(quota.scope, limits, &grant, lacks))
}

async fn ask(
    questions: &UnboundedSender<QuotaQuestion>,
    quota: &Arc<ScopeQuota>,
    limits: QuotaLimits,
) -> Result<Grant, StoreError> {
    let (reply, granted) = oneshot::channel();
    let question = QuotaQuestion { quota: quota.clone(), limits, reply };
    questions.send(question).map_err(|_| StoreError::Unreachable("its connection has ended".into()))?;
    granted.await.unwrap_or(Err(StoreError::TimedOut))
}

impl Store {
    /// Lets a request of a caller in, unless one of its limits of requests per minute or in flight is reached.
    pub async fn enter(&self, limits: &CallerLimits) -> Result<LimitPermit, EnterError> {
        let mut permit = LimitPermit::default();
        for (entered, limits) in permit.entered.iter_mut().zip(limits.iter()) {
            let Some(wanted) = limits.quota() else { continue };
            let quota = self.quotas.of(limits.scope);
            // Boxed, because it is large: every request would carry it as well.
            let start = Box::pin(self.quotas.enter(&quota, wanted, &self.clock)).await?;
            *entered = Some((quota, start));
        }
        Ok(permit)
    }
}
