//! What an administrator does to a person and their keys: disabling an account, revoking its keys, deleting it.
//!
//! A deleted account loses its name, address, password, factors, sessions, links, limits and keys. Its id stays, so that
//! its recorded requests are still counted; the audit log is unchanged. Its address and its connection to the identity
//! provider also stay, in separate columns, so that the person cannot sign in through the provider.

use chat::Timestamp;

use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::sql::params;
use crate::identity::accounts::{AccountChange, AccountError, find_account, require_an_admin};
use crate::identity::challenges::forget_challenges;
use crate::identity::confirmations::require_confirmed;
use crate::identity::links::{LinksOf, withdraw_links};
use crate::identity::second_factors::forget_factors;
use crate::keys::key::{COUNT_ACTIVE, revoke_keys};
use crate::limits::changes::count_up;
use crate::values::{Account, AccountId, Admin, Scope};
use crate::{Accounts, StoreError};

/// Whether a person may sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Enabled,
    /// Keys keep working unless they are revoked as well.
    Disabled {
        revokes_keys: bool,
    },
}

impl Accounts<'_> {
    /// The number of a person's active keys.
    pub async fn count_active_keys(self, _admin: Admin<'_>, of: AccountId) -> Result<u64, StoreError> {
        self.connection().await?.query_value(COUNT_ACTIVE, params![&of, self.now()]).await
    }

    /// Revokes all keys of a person; returns their number.
    pub async fn revoke_keys(self, admin: Admin<'_>, of: AccountId) -> Result<u64, AccountError> {
        self.change(admin.0, async |transaction| {
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            let revoked = revoke_keys(transaction, of).await?;
            let action = AuditAction::RevokedKeys { count: revoked };
            transaction.audit(admin.0, action, &AuditSubject::person(&found)).await?;
            Ok(revoked)
        })
        .await
    }

    /// Disabling an account ends its sessions and withdraws the links that it created and those that reset its password.
    pub async fn set_access(
        self,
        admin: Admin<'_>,
        of: AccountId,
        access: Access,
    ) -> Result<AccountChange, AccountError> {
        self.change(admin.0, async |transaction| {
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            let subject = AuditSubject::person(&found);
            let set = "UPDATE accounts SET disabled_at = $2 WHERE id = $1";
            let Access::Disabled { revokes_keys } = access else {
                require_confirmed(transaction, admin.0).await?;
                transaction.execute(set, params![&of, None::<Timestamp>]).await?;
                transaction.audit(admin.0, AuditAction::EnabledAccount, &subject).await?;
                let account = Account { disabled_at: None, ..found };
                return Ok(AccountChange { account, revoked_keys: 0, withdrawn_links: 0 });
            };
            let disabled_at = Some(found.disabled_at.unwrap_or(transaction.now()));
            transaction.execute(set, params![&of, disabled_at]).await?;
            require_an_admin(transaction).await?;
            transaction.execute("DELETE FROM sessions WHERE account = $1", params![&of]).await?;
            forget_challenges(transaction, of).await?;
            let revoked_keys = if revokes_keys { Some(revoke_keys(transaction, of).await?) } else { None };
            transaction.audit(admin.0, AuditAction::DisabledAccount { revoked_keys }, &subject).await?;
            let mut withdrawn_links = withdraw_links(transaction, admin, LinksOf::Maker(&found)).await?;
            withdrawn_links += withdraw_links(transaction, admin, LinksOf::Account(&found)).await?;
            let account = Account { disabled_at, ..found };
            Ok(AccountChange { account, revoked_keys: revoked_keys.unwrap_or(0), withdrawn_links })
        })
        .await
    }

    /// Deletes a person's account permanently; returns the number of keys that were revoked with it.
    pub async fn delete(self, admin: Admin<'_>, of: AccountId) -> Result<u64, AccountError> {
        self.change(admin.0, async |transaction| {
            require_confirmed(transaction, admin.0).await?;
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            withdraw_links(transaction, admin, LinksOf::Maker(&found)).await?;
            withdraw_links(transaction, admin, LinksOf::Account(&found)).await?;
            transaction.execute("DELETE FROM sessions WHERE account = $1", params![&of]).await?;
            forget_factors(transaction, of).await?;
            forget_challenges(transaction, of).await?;
            let revoked = revoke_keys(transaction, of).await?;
            let scope = Scope::Owner(of).to_string();
            transaction.execute("DELETE FROM limits WHERE scope = $1", params![&*scope]).await?;
            count_up(transaction).await?;
            let (now, email) = (transaction.now(), format!("deleted-{of}"));
            let delete = "UPDATE accounts SET name = 'Deleted', email = $2, password = '', role = 'developer',
                disabled_at = $3, deleted_at = $3, deleted_email = $4 WHERE id = $1";
            transaction.execute(delete, params![&of, &*email, now, found.email.as_str()]).await?;
            require_an_admin(transaction).await?;
            let action = AuditAction::DeletedAccount { revoked_keys: revoked };
            transaction.audit(admin.0, action, &AuditSubject::person(&found)).await?;
            Ok(revoked)
        })
        .await
    }
}
