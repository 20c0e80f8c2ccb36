//! Account administration: profiles, key revocation, sessions and deletion.
//!
//! A deleted account loses its name, address, password, factors, sessions, links, limits and keys. Its id stays, so that
//! its recorded requests are still counted; the audit log is unchanged. Its address and its connection to the identity
//! provider also stay, in separate columns, so that the person cannot sign in through the provider.

use crate::accounts::{Account, AccountError, Email, find_account, require_an_admin};
use crate::audit_action::{AuditAction, AuditSubject};
use crate::challenges::forget_challenges;
use crate::confirmations::require_confirmed;
use crate::id::{AccountId, SessionId};
use crate::keys::COUNT_ACTIVE;
use crate::limits::count_up;
use crate::links::{LinksOf, withdraw_links};
use crate::person_name::PersonName;
use crate::scope::Scope;
use crate::second_factors::forget_factors;
use crate::sql::{Transaction, params};
use crate::viewer::Admin;
use crate::{Store, StoreError};

impl Store {
    /// The number of a person's active keys.
    pub async fn count_active_keys(&self, _admin: Admin<'_>, of: AccountId) -> Result<u64, StoreError> {
        self.connection().await?.query_value(COUNT_ACTIVE, params![&of, self.now()]).await
    }

    /// Revokes all keys of a person; returns their number.
    pub async fn revoke_keys_of(&self, admin: Admin<'_>, of: AccountId) -> Result<u64, AccountError> {
        self.change(admin.0, async |transaction| {
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            let revoked = revoke_keys(transaction, of).await?;
            let action = AuditAction::RevokedKeys { count: revoked };
            transaction.audit(admin.0, action, &AuditSubject::person(&found)).await?;
            Ok(revoked)
        })
        .await
    }

    /// Ends all sessions of a person; returns their number.
    pub async fn end_sessions_of(&self, admin: Admin<'_>, of: AccountId) -> Result<u64, AccountError> {
        self.change(admin.0, async |transaction| {
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            let ended = transaction.execute("DELETE FROM sessions WHERE account = $1", params![&of]).await?;
            let action = AuditAction::EndedSessions { count: ended };
            transaction.audit(admin.0, action, &AuditSubject::person(&found)).await?;
            Ok(ended)
        })
        .await
    }

    /// Ends one session of a person; `false` if there is no such session.
    pub async fn end_session_of(
        &self,
        admin: Admin<'_>,
        of: AccountId,
        session: SessionId,
    ) -> Result<bool, AccountError> {
        self.change(admin.0, async |transaction| {
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            let end = "DELETE FROM sessions WHERE id = $1 AND account = $2";
            let ended = transaction.execute(end, params![&session, &of]).await?;
            if ended > 0 {
                let action = AuditAction::EndedSessions { count: ended };
                transaction.audit(admin.0, action, &AuditSubject::person(&found)).await?;
            }
            Ok(ended > 0)
        })
        .await
    }

    /// Changes a person's name and e-mail address.
    pub async fn set_profile(
        &self,
        admin: Admin<'_>,
        of: AccountId,
        name: &PersonName,
        email: &Email,
    ) -> Result<Account, AccountError> {
        self.change(admin.0, async |transaction| {
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            // The identity provider connects accounts by address.
            if *email != found.email {
                require_confirmed(transaction, admin.0).await?;
            }
            let taken = "SELECT EXISTS (SELECT 1 FROM accounts WHERE email = $1 AND id <> $2)";
            if transaction.query_value(taken, params![email.as_str(), &of]).await? {
                return Err(AccountError::EmailTaken);
            }
            let set = "UPDATE accounts SET name = $2, email = $3 WHERE id = $1";
            transaction.execute(set, params![&of, name.as_str(), email.as_str()]).await?;
            // So that links are still found, and withdrawn, by their maker's address.
            let links = "UPDATE links SET made_by = $2 WHERE made_by = $1";
            transaction.execute(links, params![found.email.as_str(), email.as_str()]).await?;
            let action = AuditAction::ChangedProfile { name: name.as_str().to_owned(), email: email.to_string() };
            transaction.audit(admin.0, action, &AuditSubject::person(&found)).await?;
            Ok(Account { name: name.as_str().to_owned(), email: email.clone(), ..found })
        })
        .await
    }

    /// Deletes a person's account permanently; returns the number of keys that were revoked with it.
    pub async fn delete_account(&self, admin: Admin<'_>, of: AccountId) -> Result<u64, AccountError> {
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

/// Revokes a person's unrevoked keys.
pub(crate) async fn revoke_keys(transaction: &mut Transaction<'_>, of: AccountId) -> Result<u64, StoreError> {
    let now = transaction.now();
    let revoke = "UPDATE keys SET revoked_at = $2 WHERE owner = $1 AND revoked_at IS NULL AND NOT playground";
    transaction.execute(revoke, params![&of, now]).await
}
