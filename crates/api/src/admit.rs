//! Admission: a runtime, a healthy ledger and a free slot, all checked before any work is done.

use admission::Permit;
use runtimes::Availability;
use store::{Client, EnterError, LimitPermit};

use crate::authentication::Authorized;
use crate::error::ApiError;
use crate::inference::Runtimes;
use crate::worker::Worker;

/// A request that may use a runtime; it holds its slot for as long as it lives.
pub(crate) struct Admitted<'w> {
    pub(crate) runtimes: &'w Runtimes,
    _permit: Permit<Client>,
    _limits: LimitPermit,
}

pub(crate) async fn admit<'w>(worker: &'w Worker, caller: &Authorized) -> Result<Admitted<'w>, ApiError> {
    let runtimes = worker.runtimes.as_ref().ok_or_else(ApiError::unconfigured)?;
    match runtimes.availability() {
        Availability::Available => {}
        Availability::Starting => return Err(ApiError::starting()),
        Availability::Unresponsive => return Err(ApiError::unresponsive()),
        Availability::Unconfigured => return Err(ApiError::unconfigured()),
    }
    if !worker.ledger.is_healthy() {
        return Err(ApiError::unavailable("Usage cannot be recorded now, so no completions are run."));
    }
    let mut limits = worker.api.store.enter(caller.limits()).await.map_err(|error| match error {
        EnterError::Reached(reached) => ApiError::limit_reached(&reached),
        EnterError::Store(error) => ApiError::unavailable("The service cannot check limits now.").caused_by(error),
    })?;
    let permit = worker.api.admission.enter(caller.client()).ok_or_else(ApiError::at_capacity)?;
    limits.start();
    Ok(Admitted { runtimes, _permit: permit, _limits: limits })
}
