//! The reservation that an admitted request holds until its row is committed.

use std::sync::Arc;

use chat::RequestId;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::state::{Refusal, Reservation, State};
use super::table::CallerLimits;
use crate::clock::StoreClock;
use crate::keys::Caller;
use crate::{Backend, Store, StoreError};

/// Why a request gets no permit.
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    #[error("a limit is reached")]
    Refused(Refusal),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A reservation, which ends when this is dropped. The ledger drops it once the request's row is durable, or has failed.
#[must_use]
pub struct Permit {
    reservation: Reservation,
    keeper: Keeper,
    is_settled: bool,
}

/// Where the reservation is kept.
pub(crate) enum Keeper {
    Memory(Arc<Mutex<State>>, Arc<StoreClock>),
    Database(UnboundedSender<Reserve>),
}

/// Commands for the task that shares limits with other replicas.
pub(crate) enum Reserve {
    /// The permit is sent to the task and back: if the caller has hung up, it is dropped, and the reservation ends.
    Take {
        permit: Permit,
        limits: CallerLimits,
        reply: oneshot::Sender<Result<Permit, ReserveError>>,
    },
    Release(Release),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Release {
    pub(crate) request: RequestId,
    /// Whether the commit of the request's row has already ended the reservation.
    pub(crate) is_settled: bool,
}

impl Permit {
    pub(crate) fn new(reservation: Reservation, keeper: Keeper) -> Self {
        Self { reservation, keeper, is_settled: false }
    }

    pub(crate) fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The request's row and its spending are committed.
    pub(crate) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match &self.keeper {
            Keeper::Memory(state, clock) => state.lock().release(&self.reservation, clock.now()),
            Keeper::Database(task) => {
                let release = Release { request: self.reservation.request, is_settled: self.is_settled };
                let _ = task.send(Reserve::Release(release)); // without the task, no request is served
            }
        }
    }
}

impl Store {
    /// Reserves one request and at most `tokens`. `None` for a caller without limits.
    pub async fn reserve(
        &self,
        caller: &Caller,
        request: RequestId,
        tokens: u64,
    ) -> Result<Option<Permit>, ReserveError> {
        let limits = self.limits_of(caller).await?;
        if limits.is_empty() {
            return Ok(None);
        }
        let reservation = Reservation { request, key: caller.key(), owner: caller.owner(), tokens };
        let permit = match &self.backend {
            Backend::Sqlite(backend) => backend.reserve(reservation, &limits, &self.clock)?,
            // Boxed, because this large future would be part of every request's future.
            Backend::Postgres(backend) => Box::pin(backend.reserve(reservation, limits)).await?,
        };
        Ok(Some(permit))
    }
}
