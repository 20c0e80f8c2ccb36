//! Confirmations: a change that could take over an account or a key needs the password or passkey again. A session stores
//! the time of its last confirmation, and the change's own transaction requires a recent one. A stolen cookie alone is not
//! enough.

use std::time::Duration;

use crate::database::sql::{Transaction, params};
use crate::identity::accounts::AccountError;
use crate::identity::second_factors::UsedPasskey;
use crate::values::{AccountId, Viewer};
use crate::{SignIns, StoreError};

/// How long a confirmation holds.
const CONFIRMED_FOR: Duration = Duration::from_secs(300);

impl SignIns<'_> {
    /// Records that the viewer's password was right; `false` if it has changed since it was verified.
    pub async fn confirm_with_password(self, viewer: &Viewer, verified: &str) -> Result<bool, StoreError> {
        let Some(account) = viewer.id() else { return Ok(true) };
        self.change(viewer, async |transaction| {
            let unchanged = "SELECT EXISTS (SELECT 1 FROM accounts WHERE id = $1 AND password = $2)";
            let is_right = transaction.query_value(unchanged, params![&account, verified]).await?;
            if is_right {
                confirm(transaction, viewer).await?;
            }
            Ok(is_right)
        })
        .await
    }

    /// Records that the viewer's passkey was used; `false` if it is not the viewer's, or this use was recorded before.
    pub async fn confirm_with_passkey(self, viewer: &Viewer, used: &UsedPasskey) -> Result<bool, StoreError> {
        let Some(account) = viewer.id() else { return Ok(true) };
        self.change(viewer, async |transaction| {
            let is_right = used.record(transaction, account).await?;
            if is_right {
                confirm(transaction, viewer).await?;
            }
            Ok(is_right)
        })
        .await
    }
}

async fn confirm(transaction: &mut Transaction<'_>, viewer: &Viewer) -> Result<(), StoreError> {
    let Some((_, session)) = viewer.session() else { return Ok(()) };
    let now = transaction.now();
    transaction.execute("UPDATE sessions SET confirmed_at = $2 WHERE id = $1", params![session, now]).await?;
    Ok(())
}

/// Declines a change without a recent confirmation. The operator at the command line needs none.
pub(crate) async fn require_confirmed(transaction: &mut Transaction<'_>, viewer: &Viewer) -> Result<(), StoreError> {
    let Some((_, session)) = viewer.session() else { return Ok(()) };
    let is_confirmed = "SELECT EXISTS (SELECT 1 FROM sessions WHERE id = $1 AND confirmed_at >= $2)";
    let since = transaction.now().saturating_sub(CONFIRMED_FOR);
    match transaction.query_value(is_confirmed, params![session, since]).await? {
        true => Ok(()),
        false => Err(StoreError::NotConfirmed),
    }
}

/// Declines a change that administrators make to others, and to themselves only on their own account page.
pub(crate) fn require_another(viewer: &Viewer, of: AccountId) -> Result<(), AccountError> {
    if viewer.id() == Some(of) { Err(AccountError::OwnAccount) } else { Ok(()) }
}
