//! The limits in force: loaded once per version, and the reservations of the requests that they admit.

use std::sync::Arc;

use chat::RequestId;
use parking_lot::RwLock;
use tokio::sync::Mutex;

use crate::database::{Backend, Base};
use crate::keys::key::Caller;
use crate::limits::changes::{LIMITS_VERSION, limit};
use crate::limits::permit::{Permit, ReserveError};
use crate::limits::postgres::PostgresReservations;
use crate::limits::sqlite::SqliteReservations;
use crate::limits::state::Reservation;
use crate::limits::table::{CallerLimits, LimitTable};
use crate::{Limits, StoreError};

pub(crate) struct LimitsInForce {
    /// The limits loaded last.
    known: RwLock<Arc<LimitTable>>,
    loading: Mutex<()>,
    reservations: Reservations,
}

/// Where reservations are kept.
enum Reservations {
    Sqlite(SqliteReservations),
    Postgres(PostgresReservations),
}

impl LimitsInForce {
    pub(crate) fn new(base: &Base) -> Self {
        let reservations = match &base.backend {
            Backend::Sqlite(file) => Reservations::Sqlite(SqliteReservations::new(file.clone())),
            Backend::Postgres(postgres) => {
                Reservations::Postgres(PostgresReservations::start(postgres.server(), base.clock.clone()))
            }
        };
        Self { known: RwLock::default(), loading: Mutex::default(), reservations }
    }
}

impl Limits<'_> {
    /// Reserves one request and at most `tokens`. `None` for a caller without limits.
    pub async fn reserve(
        self,
        caller: &Caller,
        request: RequestId,
        tokens: u64,
    ) -> Result<Option<Permit>, ReserveError> {
        let limits = self.of_caller(caller).await?;
        if limits.is_empty() {
            return Ok(None);
        }
        let reservation = Reservation { request, key: caller.key(), owner: caller.owner(), tokens };
        let permit = match &self.0.limits.reservations {
            Reservations::Sqlite(process) => process.reserve(reservation, &limits, &self.clock)?,
            // Boxed, because this large future would be part of every request's future.
            Reservations::Postgres(task) => Box::pin(task.reserve(reservation, limits)).await?,
        };
        Ok(Some(permit))
    }

    /// The limits of a caller, at least as new as when the key was looked up.
    async fn of_caller(self, caller: &Caller) -> Result<CallerLimits, StoreError> {
        let current =
            || Some(self.0.limits.known.read().clone()).filter(|known| known.version == caller.limits_version());
        let known = match current() {
            Some(known) => known,
            None => {
                let _once = self.0.limits.loading.lock().await;
                match current() {
                    Some(known) => known,
                    None => self.load().await?,
                }
            }
        };
        Ok(known.limits_of(caller.key(), caller.owner()))
    }

    async fn load(self) -> Result<Arc<LimitTable>, StoreError> {
        let mut connection = self.connection().await?;
        // The version first: limits that change in between are then loaded again.
        let version = connection.query_value(LIMITS_VERSION, &[]).await?;
        let limits = connection.query("SELECT scope, kind, amount FROM limits", &[], limit).await?;
        let loaded = Arc::new(LimitTable::new(version, limits));
        *self.0.limits.known.write() = loaded.clone();
        Ok(loaded)
    }
}
