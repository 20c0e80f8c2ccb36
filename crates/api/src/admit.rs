//! Admission: a runtime, a healthy ledger and a free slot, all checked before any work is done.

use admission::Permit;
use chat::KeyId;
use runtimes::Availability;

use crate::authentication::Authorized;
use crate::error::ApiError;
use crate::inference::Runtimes;
use crate::worker::Worker;

/// A request that may use a runtime; it holds its slot for as long as it lives.
pub(crate) struct Admitted<'w> {
    pub(crate) runtimes: &'w Runtimes,
    _permit: Permit<KeyId>,
}

pub(crate) fn admit<'w>(worker: &'w Worker, caller: &Authorized) -> Result<Admitted<'w>, ApiError> {
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
    let permit = worker.api.admission.enter(caller.key()).ok_or_else(ApiError::at_capacity)?;
    Ok(Admitted { runtimes, _permit: permit })
}
