//! Second factors of people who sign in with a password: authenticator apps and passkeys, and recovery codes in case they
//! are lost. Administrators can require a second factor for all accounts.

use chat::Timestamp;
use sha2::{Digest, Sha256};

use crate::audit::action::{AuditAction, AuditSubject};
use crate::database::sql::{Row, Transaction, params};
use crate::identity::accounts::{ACCOUNT_COLUMNS, AccountError, account, find_account};
use crate::identity::challenges::{ChallengePurpose, codes_of, forget_challenges, insert_challenge};
use crate::identity::confirmations::{require_another, require_confirmed};
use crate::identity::failures::add_failure;
use crate::values::{Account, AccountId, Admin, Email, SessionId, Viewer};
use crate::{Factors, StoreError};

/// Whether an account has a second factor, as a condition on `accounts`.
pub(crate) const HAS_SECOND_FACTOR: &str =
    "EXISTS (SELECT 1 FROM authenticator_apps WHERE authenticator_apps.account = accounts.id)
    OR EXISTS (SELECT 1 FROM passkeys WHERE passkeys.account = accounts.id)";
/// Whether every account must have one.
pub(crate) const IS_REQUIRED: &str = "EXISTS (SELECT 1 FROM sign_in_policy WHERE rule = 'second-factor')";

#[derive(Debug, Clone, Default)]
pub struct SecondFactors {
    /// When the authenticator app was added.
    pub app_since: Option<Timestamp>,
    pub passkeys: Vec<PasskeyRecord>,
    /// Unused ones.
    pub recovery_codes: u64,
}

impl SecondFactors {
    pub fn is_empty(&self) -> bool {
        self.app_since.is_none() && self.passkeys.is_empty()
    }
}

#[derive(Debug, Clone)]
pub struct PasskeyRecord {
    /// The credential's id, in hexadecimal.
    pub id: String,
    pub name: String,
    pub created_at: Timestamp,
    pub used_at: Option<Timestamp>,
}

/// A passkey with its public key.
#[derive(Debug, Clone)]
pub struct Passkey {
    pub id: String,
    pub account: AccountId,
    /// In the WebAuthn library's format.
    pub credential: String,
}

/// The state of an account's authenticator app.
pub struct AuthenticatorApp {
    /// The shared secret, in base32.
    pub key: String,
    /// The time step of the last used code.
    pub last_step: u64,
}

/// A code that was typed in the second step of signing in.
#[derive(Clone, Copy)]
pub enum SecondFactorCode<'a> {
    /// A code of the app with this key, right for this time step.
    App {
        key: &'a str,
        step: u64,
    },
    Recovery(&'a RecoveryCode),
}

impl SecondFactorCode<'_> {
    /// `false` if it is not the account's, or was used before.
    pub(crate) async fn use_up(
        self,
        transaction: &mut Transaction<'_>,
        account: &Account,
        address: &str,
    ) -> Result<bool, StoreError> {
        match self {
            Self::App { key, step } => {
                let advance =
                    "UPDATE authenticator_apps SET last_step = $3 WHERE account = $1 AND key = $2 AND last_step < $3";
                let is_right = transaction.execute(advance, params![&account.id, key, step]).await? > 0;
                if is_right {
                    // It was counted as wrong before it was checked.
                    add_failure(transaction, &codes_of(account.id), -1.0).await?;
                }
                Ok(is_right)
            }
            Self::Recovery(code) => {
                let used = "DELETE FROM recovery_codes WHERE account = $1 AND digest = $2";
                let is_right = transaction.execute(used, params![&account.id, &code.digest()]).await? > 0;
                if is_right {
                    let (email, subject) = (account.email.as_str(), AuditSubject::person(account));
                    transaction.audit_as(email, address, AuditAction::UsedRecoveryCode, &subject).await?;
                }
                Ok(is_right)
            }
        }
    }
}

/// A passkey that has answered a challenge.
pub struct UsedPasskey {
    pub id: String,
    /// Updated by the use: contains the signature counter.
    pub credential: String,
    /// The challenge, which can be answered once.
    pub challenge: String,
}

impl UsedPasskey {
    /// `false` if it is no longer the account's, or the challenge was answered before.
    pub(crate) async fn record(
        &self,
        transaction: &mut Transaction<'_>,
        account: AccountId,
    ) -> Result<bool, StoreError> {
        let now = transaction.now();
        let update = "UPDATE passkeys SET credential = $3, used_at = $4 WHERE id = $1 AND account = $2";
        let is_there = transaction.execute(update, params![&*self.id, &account, &*self.credential, now]).await? > 0;
        let digest = Sha256::digest(self.challenge.as_bytes()).into();
        let is_first = insert_challenge(transaction, ChallengePurpose::Answered, account, digest, "").await?;
        Ok(is_there && is_first)
    }
}

/// A code that replaces a second factor once: 60 random bits. Only its digest is stored.
pub struct RecoveryCode(String);

impl RecoveryCode {
    /// Codes of an account.
    pub const COUNT: usize = 10;
    /// Crockford's base32, which has no similar-looking characters.
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    const GROUP: usize = 4;
    const LEN: usize = 12;

    /// Fails only if the system returns no random numbers.
    pub fn generate_all() -> Result<[Self; Self::COUNT], StoreError> {
        let mut bytes = [0; Self::COUNT * Self::LEN];
        getrandom::fill(&mut bytes)?;
        let letter = |byte: &u8| char::from(Self::ALPHABET[usize::from(byte % 32)]);
        Ok(std::array::from_fn(|code| Self(bytes[code * Self::LEN..][..Self::LEN].iter().map(letter).collect())))
    }

    /// Ignores spaces, hyphens and case, and reads letters that look like digits as digits. `None` if it is not a code.
    pub fn parse(typed: &str) -> Option<Self> {
        let read = |character: char| match character.to_ascii_lowercase() {
            'o' => '0',
            'i' | 'l' => '1',
            other => other,
        };
        let code: String = typed.chars().filter(|typed| !matches!(typed, ' ' | '-')).map(read).collect();
        let shaped = code.len() == Self::LEN && code.bytes().all(|byte| Self::ALPHABET.contains(&byte));
        shaped.then_some(Self(code))
    }

    /// The code in groups, to show to its owner.
    pub fn reveal(&self) -> String {
        let groups: Vec<_> = self.0.as_bytes().chunks(Self::GROUP).map(String::from_utf8_lossy).collect();
        groups.join("-")
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

impl Factors<'_> {
    pub async fn of(self, of: AccountId) -> Result<SecondFactors, StoreError> {
        let mut connection = self.connection().await?;
        let app = "SELECT created_at FROM authenticator_apps WHERE account = $1";
        let app_since = connection.query_optional(app, params![&of], |row| row.get(0)).await?;
        let list = "SELECT id, name, created_at, used_at FROM passkeys WHERE account = $1 ORDER BY created_at, id";
        let read = |row: &Row<'_>| {
            let (created_at, used_at) = (row.get(2)?, row.get_optional(3)?);
            Ok(PasskeyRecord { id: row.get(0)?, name: row.get(1)?, created_at, used_at })
        };
        let passkeys = connection.query(list, params![&of], read).await?;
        let count = "SELECT count(*) FROM recovery_codes WHERE account = $1";
        let recovery_codes = connection.query_value(count, params![&of]).await?;
        Ok(SecondFactors { app_since, passkeys, recovery_codes })
    }

    pub async fn authenticator_app(self, of: AccountId) -> Result<Option<AuthenticatorApp>, StoreError> {
        let find = "SELECT key, last_step FROM authenticator_apps WHERE account = $1";
        let read = |row: &Row<'_>| Ok(AuthenticatorApp { key: row.get(0)?, last_step: row.get(1)? });
        self.connection().await?.query_optional(find, params![&of], read).await
    }

    /// Adds or replaces the viewer's app, whose code for `step` was checked. Stores `codes` as recovery codes if there are
    /// none; returns whether it did. The first factor ends all sessions except `but`.
    pub async fn set_authenticator_app(
        self,
        viewer: &Viewer,
        except: SessionId,
        key: &str,
        step: u64,
        codes: &[RecoveryCode],
    ) -> Result<bool, StoreError> {
        let Some(account) = viewer.id() else { return Ok(false) };
        self.change(viewer, async |transaction| {
            let now = transaction.now();
            end_sessions_without_factor(transaction, account, except).await?;
            let set = "INSERT INTO authenticator_apps (account, key, last_step, created_at) VALUES ($1, $2, $3, $4)
                ON CONFLICT (account) DO UPDATE SET key = excluded.key, last_step = excluded.last_step,
                    created_at = excluded.created_at";
            transaction.execute(set, params![&account, key, step, now]).await?;
            transaction.audit(viewer, AuditAction::AddedAuthenticatorApp, &AuditSubject::viewer(viewer)).await?;
            let any = "SELECT EXISTS (SELECT 1 FROM recovery_codes WHERE account = $1)";
            let has_codes: bool = transaction.query_value(any, params![&account]).await?;
            if !has_codes {
                replace_codes(transaction, account, codes).await?;
            }
            Ok(!has_codes)
        })
        .await
    }

    pub async fn remove_authenticator_app(self, viewer: &Viewer) -> Result<bool, StoreError> {
        let Some(account) = viewer.id() else { return Ok(false) };
        self.change(viewer, async |transaction| {
            let remove = "DELETE FROM authenticator_apps WHERE account = $1";
            let removed = transaction.execute(remove, params![&account]).await? > 0;
            if removed {
                transaction.audit(viewer, AuditAction::RemovedAuthenticatorApp, &AuditSubject::viewer(viewer)).await?;
                forget_codes_without_factor(transaction, account).await?;
            }
            Ok(removed)
        })
        .await
    }

    /// The first factor ends all sessions except `but`.
    pub async fn add_passkey(
        self,
        viewer: &Viewer,
        except: SessionId,
        id: &str,
        name: &str,
        credential: &str,
    ) -> Result<bool, StoreError> {
        let Some(account) = viewer.id() else { return Ok(false) };
        self.change(viewer, async |transaction| {
            let now = transaction.now();
            end_sessions_without_factor(transaction, account, except).await?;
            let add = "INSERT INTO passkeys (id, account, name, credential, created_at) VALUES ($1, $2, $3, $4, $5)
                ON CONFLICT (id) DO NOTHING";
            let added = transaction.execute(add, params![id, &account, name, credential, now]).await? > 0;
            if added {
                transaction.audit(viewer, AuditAction::AddedPasskey, &AuditSubject::passkey(id, name)).await?;
            }
            Ok(added)
        })
        .await
    }

    pub async fn remove_passkey(self, viewer: &Viewer, id: &str) -> Result<bool, StoreError> {
        let Some(account) = viewer.id() else { return Ok(false) };
        self.change(viewer, async |transaction| {
            let remove = "DELETE FROM passkeys WHERE id = $1 AND account = $2 RETURNING name";
            let name = transaction.query_optional(remove, params![id, &account], |row| row.get::<String>(0)).await?;
            if let Some(name) = &name {
                transaction.audit(viewer, AuditAction::RemovedPasskey, &AuditSubject::passkey(id, name)).await?;
                forget_codes_without_factor(transaction, account).await?;
            }
            Ok(name.is_some())
        })
        .await
    }

    /// `None` if there is no such passkey, or its account is disabled.
    pub async fn passkey(self, id: &str) -> Result<Option<Passkey>, StoreError> {
        let find = "SELECT passkeys.id, account, credential FROM passkeys JOIN accounts ON accounts.id = account
            WHERE passkeys.id = $1 AND disabled_at IS NULL";
        let read = |row: &Row<'_>| Ok(Passkey { id: row.get(0)?, account: row.get(1)?, credential: row.get(2)? });
        self.connection().await?.query_optional(find, params![id], read).await
    }

    /// The address of a passkey's account, even if it is disabled.
    pub async fn passkey_owner(self, id: &str) -> Result<Option<Email>, StoreError> {
        let find = "SELECT email FROM passkeys JOIN accounts ON accounts.id = account WHERE passkeys.id = $1";
        self.connection().await?.query_optional(find, params![id], |row| row.get(0)).await
    }

    /// Replaces the viewer's recovery codes; earlier ones no longer work.
    pub async fn set_recovery_codes(self, viewer: &Viewer, codes: &[RecoveryCode]) -> Result<(), StoreError> {
        let Some(account) = viewer.id() else { return Ok(()) };
        self.change(viewer, async |transaction| {
            replace_codes(transaction, account, codes).await?;
            transaction.audit(viewer, AuditAction::CreatedRecoveryCodes, &AuditSubject::viewer(viewer)).await
        })
        .await
    }

    /// Removes all factors of a person who has lost them. Ends their sessions.
    pub async fn reset(self, admin: Admin<'_>, of: AccountId) -> Result<(), AccountError> {
        self.change(admin.0, async |transaction| {
            require_another(admin.0, of)?;
            require_confirmed(transaction, admin.0).await?;
            let found = find_account(transaction, of).await?.ok_or(AccountError::NoSuchAccount)?;
            forget_factors(transaction, of).await?;
            forget_challenges(transaction, of).await?;
            transaction.execute("DELETE FROM sessions WHERE account = $1", params![&of]).await?;
            transaction.audit(admin.0, AuditAction::RemovedSecondFactors, &AuditSubject::person(&found)).await?;
            Ok(())
        })
        .await
    }

    /// People who can sign in with a password alone.
    pub async fn accounts_without(self, _admin: Admin<'_>) -> Result<Vec<Account>, StoreError> {
        let list = format!(
            "SELECT {ACCOUNT_COLUMNS} FROM accounts
             WHERE disabled_at IS NULL AND deleted_at IS NULL AND password <> '' AND NOT ({HAS_SECOND_FACTOR})
             ORDER BY email"
        );
        self.connection().await?.query(&list, &[], account).await
    }

    pub async fn is_required(self) -> Result<bool, StoreError> {
        self.connection().await?.query_value(&format!("SELECT {IS_REQUIRED}"), &[]).await
    }

    pub async fn require(self, admin: Admin<'_>, required: bool) -> Result<(), AccountError> {
        self.change(admin.0, async |transaction| {
            if !required {
                require_confirmed(transaction, admin.0).await?;
            }
            let now = transaction.now();
            let (changed, action) = match required {
                true => {
                    let set =
                        "INSERT INTO sign_in_policy (rule, set_at) VALUES ('second-factor', $1) ON CONFLICT DO NOTHING";
                    (transaction.execute(set, params![now]).await?, AuditAction::RequiredSecondFactor)
                }
                false => {
                    let remove = "DELETE FROM sign_in_policy WHERE rule = 'second-factor'";
                    (transaction.execute(remove, &[]).await?, AuditAction::MadeSecondFactorOptional)
                }
            };
            if changed > 0 {
                transaction.audit(admin.0, action, &AuditSubject::everyone()).await?;
            }
            Ok(())
        })
        .await
    }
}

async fn replace_codes(
    transaction: &mut Transaction<'_>,
    account: AccountId,
    codes: &[RecoveryCode],
) -> Result<(), StoreError> {
    transaction.execute("DELETE FROM recovery_codes WHERE account = $1", params![&account]).await?;
    for code in codes {
        let insert = "INSERT INTO recovery_codes (account, digest) VALUES ($1, $2)";
        transaction.execute(insert, params![&account, &code.digest()]).await?;
    }
    Ok(())
}

/// Called before the first factor is added: sessions that began without one may be an intruder's.
async fn end_sessions_without_factor(
    transaction: &mut Transaction<'_>,
    account: AccountId,
    except: SessionId,
) -> Result<(), StoreError> {
    let end = format!(
        "DELETE FROM sessions WHERE account = $1 AND id <> $2
            AND NOT EXISTS (SELECT 1 FROM accounts WHERE accounts.id = $1 AND ({HAS_SECOND_FACTOR}))"
    );
    transaction.execute(&end, params![&account, &except]).await?;
    Ok(())
}

/// Recovery codes replace a factor. Without one, each would be another password.
async fn forget_codes_without_factor(transaction: &mut Transaction<'_>, account: AccountId) -> Result<(), StoreError> {
    let forget = format!(
        "DELETE FROM recovery_codes WHERE account = $1
            AND NOT EXISTS (SELECT 1 FROM accounts WHERE accounts.id = $1 AND ({HAS_SECOND_FACTOR}))"
    );
    transaction.execute(&forget, params![&account]).await?;
    Ok(())
}

pub(crate) async fn forget_factors(transaction: &mut Transaction<'_>, account: AccountId) -> Result<(), StoreError> {
    for table in ["authenticator_apps", "passkeys", "recovery_codes"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE account = $1"), params![&account]).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_codes_may_be_typed_in_any_case_and_grouping() {
        let codes = RecoveryCode::generate_all().unwrap();
        for code in &codes {
            let shown = code.reveal();
            assert_eq!(shown.len(), 14, "{shown}");
            for typed in [shown.clone(), shown.replace('-', ""), shown.replace('-', " "), shown.to_uppercase()] {
                assert_eq!(RecoveryCode::parse(&typed).unwrap().digest(), code.digest(), "{typed:?}");
            }
        }
        assert_ne!(codes[0].digest(), codes[1].digest());
        for typed in ["", "123456", "uuuu-uuuu-uuuu", "2222-2222-222", "2222-2222-22222", "ßßßßßß"] {
            assert!(RecoveryCode::parse(typed).is_none(), "{typed:?}");
        }
    }
}
