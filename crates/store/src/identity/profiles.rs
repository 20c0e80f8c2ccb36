//! What an administrator changes of another account: its name, its e-mail address, its sessions.

use crate::Accounts;
use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::sql::params;
use crate::identity::accounts::{AccountError, find_account};
use crate::identity::confirmations::require_confirmed;
use crate::values::{Account, AccountId, Admin, Email, PersonName, SessionId};

impl Accounts<'_> {
    /// Ends all sessions of a person; returns their number.
    pub async fn end_sessions(self, admin: Admin<'_>, of: AccountId) -> Result<u64, AccountError> {
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
    pub async fn end_session(self, admin: Admin<'_>, of: AccountId, session: SessionId) -> Result<bool, AccountError> {
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
        self,
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
}
