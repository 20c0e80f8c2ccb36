//! The reservation that an admitted request holds until its row is committed.

use std::sync::Arc;

use chat::RequestId;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::limits::state::{Refusal, Reservation, State};
use crate::limits::table::CallerLimits;

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
    Take(Question),
    Release(Release),
}

pub(crate) struct Question {
    pub(crate) permit: Permit,
    pub(crate) limits: CallerLimits,
    pub(crate) reply: oneshot::Sender<Result<Permit, ReserveError>>,
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
