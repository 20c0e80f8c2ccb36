//! Keys that expire soon, for notifications.

use std::time::Duration;

use chat::Timestamp;

use crate::database::sql::params;
use crate::keys::key::{KeyRecord, KeyState, VISIBLE};
use crate::values::Viewer;
use crate::{Keys, StoreError};

const EXPIRY_NOTICE: Duration = Duration::from_secs(7 * 86_400);

impl KeyRecord {
    pub fn expires_soon(&self, now: Timestamp) -> bool {
        self.state(now) == KeyState::Active && self.expires_at.is_some_and(|at| at <= now + EXPIRY_NOTICE)
    }
}

impl Keys<'_> {
    /// Active keys that expire soon, the next one first.
    pub async fn expiring(self) -> Result<Vec<KeyRecord>, StoreError> {
        let condition = "revoked_at IS NULL AND NOT playground AND expires_at > $1 AND expires_at <= $2
            ORDER BY expires_at";
        let now = self.now();
        self.records(condition, params![now, now + EXPIRY_NOTICE]).await
    }

    /// The number of expiring keys that the viewer may see.
    pub async fn count_expiring(self, viewer: &Viewer) -> Result<u64, StoreError> {
        let count = format!(
            "SELECT count(*) FROM keys
            WHERE {VISIBLE} AND revoked_at IS NULL AND NOT playground AND expires_at > $2 AND expires_at <= $3"
        );
        let now = self.now();
        self.connection().await?.query_value(&count, params![viewer.scope(), now, now + EXPIRY_NOTICE]).await
    }
}
