//! Challenges: state of a sign-in between two requests, such as a right password that a second factor must follow, or a
//! passkey's challenge. Each belongs to an account, has a secret whose digest is stored, expires soon, and is used once.
//! Nothing is stored for visitors who have not authenticated.

use std::time::Duration;

use crate::database::sql::{Row, Transaction, params};
use crate::identity::accounts::Credentials;
use crate::identity::failures::{add_failure, failures};
use crate::values::{AccountId, Token};
use crate::{SignIns, StoreError};

const LIFETIME: Duration = Duration::from_secs(300);
/// Codes that may be tried after one right password.
const MAX_TRIES: u64 = 5;
/// Wrong codes of an account's app. Their count halves every five minutes, which allows some 2,000 guesses a day.
const MAX_WRONG_CODES: f64 = 10.0;
/// Challenges of one account and purpose. The oldest are deleted first.
const MAX_KEPT: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChallengePurpose {
    /// The password was right.
    SecondFactor,
    AddPasskey,
    /// A passkey's challenge at sign-in, stored when it is answered, so that it is answered only once.
    Answered,
}

impl ChallengePurpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::SecondFactor => "second-factor",
            Self::AddPasskey => "add-passkey",
            Self::Answered => "answered",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Challenge {
    pub account: AccountId,
    /// Data of the caller that created it.
    pub body: String,
}

/// Whether a code may be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeTry {
    Counted,
    /// The challenge has ended, or was tried too often.
    ChallengeGone,
    /// Too many wrong codes of the account's app, over all challenges. Recovery codes are too long to guess.
    TooManyWrong,
}

impl SignIns<'_> {
    pub async fn create_challenge(
        self,
        purpose: ChallengePurpose,
        account: AccountId,
        body: &str,
    ) -> Result<Token, StoreError> {
        self.change_without_viewer(async |transaction| {
            let token = Token::generate()?;
            insert_challenge(transaction, purpose, account, token.digest(), body).await?;
            Ok(token)
        })
        .await
    }

    /// Stores that the password was right; `None` if it has changed since.
    pub async fn begin_second_step(self, verified: &Credentials, body: &str) -> Result<Option<Token>, StoreError> {
        self.change_without_viewer(async |transaction| {
            let unchanged = "SELECT EXISTS (SELECT 1 FROM accounts WHERE id = $1 AND password = $2)";
            if !transaction.query_value(unchanged, params![&verified.account, &*verified.password]).await? {
                return Ok(None);
            }
            let token = Token::generate()?;
            let purpose = ChallengePurpose::SecondFactor;
            insert_challenge(transaction, purpose, verified.account, token.digest(), body).await?;
            Ok(Some(token))
        })
        .await
    }

    /// The secret with which all replicas sign challenges that they do not store.
    pub async fn sign_in_secret(self) -> Result<Token, StoreError> {
        let find = "SELECT secret FROM sign_in_secret";
        let read = |row: &Row<'_>| Token::parse(&row.get::<String>(0)?).ok_or(StoreError::Corrupt("secret"));
        if let Some(secret) = self.connection().await?.query_optional(find, &[], read).await? {
            return Ok(secret);
        }
        self.change_without_viewer(async |transaction| {
            let insert = "INSERT INTO sign_in_secret (id, secret) VALUES (1, $1) ON CONFLICT (id) DO NOTHING";
            transaction.execute(insert, params![Token::generate()?.reveal()]).await?;
            transaction.query_optional(find, &[], read).await?.ok_or(StoreError::Corrupt("secret"))
        })
        .await
    }

    /// `None` if it has ended or was tried too often.
    pub async fn challenge(self, purpose: ChallengePurpose, token: &Token) -> Result<Option<Challenge>, StoreError> {
        let find = "SELECT account, body FROM challenges
            WHERE digest = $1 AND purpose = $2 AND expires_at > $3 AND tries < $4";
        let (digest, mut connection) = (token.digest(), self.connection().await?);
        connection.query_optional(find, params![&digest, purpose.as_str(), self.now(), MAX_TRIES], read).await
    }

    /// Counts a code before it is checked, so that concurrent codes cannot exceed the limit.
    pub async fn count_code(self, challenge: &Token, is_of_app: bool) -> Result<CodeTry, StoreError> {
        self.change_without_viewer(async |transaction| {
            let count = "UPDATE challenges SET tries = tries + 1
                WHERE digest = $1 AND purpose = $2 AND expires_at > $3 AND tries < $4 RETURNING account, body";
            let (digest, purpose) = (challenge.digest(), ChallengePurpose::SecondFactor.as_str());
            let parameters = params![&digest, purpose, transaction.now(), MAX_TRIES];
            let Some(challenge) = transaction.query_optional(count, parameters, read).await? else {
                return Ok(CodeTry::ChallengeGone);
            };
            if is_of_app {
                let subject = codes_of(challenge.account);
                if failures(transaction, &subject).await? > MAX_WRONG_CODES {
                    return Ok(CodeTry::TooManyWrong);
                }
                add_failure(transaction, &subject, 1.0).await?;
            }
            Ok(CodeTry::Counted)
        })
        .await
    }

    /// Deletes the challenge and returns it; `None` if it has ended.
    pub async fn take_challenge(
        self,
        purpose: ChallengePurpose,
        token: &Token,
    ) -> Result<Option<Challenge>, StoreError> {
        self.change_without_viewer(async |transaction| take_challenge(transaction, purpose, token).await).await
    }
}

pub(crate) async fn take_challenge(
    transaction: &mut Transaction<'_>,
    purpose: ChallengePurpose,
    token: &Token,
) -> Result<Option<Challenge>, StoreError> {
    let take = "DELETE FROM challenges WHERE digest = $1 AND purpose = $2 AND expires_at > $3 RETURNING account, body";
    let (digest, now) = (token.digest(), transaction.now());
    transaction.query_optional(take, params![&digest, purpose.as_str(), now], read).await
}

/// `false` if there is already one with that digest.
pub(crate) async fn insert_challenge(
    transaction: &mut Transaction<'_>,
    purpose: ChallengePurpose,
    account: AccountId,
    digest: [u8; 32],
    body: &str,
) -> Result<bool, StoreError> {
    let (purpose, now) = (purpose.as_str(), transaction.now());
    let delete_oldest = "DELETE FROM challenges WHERE digest IN (SELECT digest FROM challenges
        WHERE account = $1 AND purpose = $2 ORDER BY created_at DESC LIMIT 1000 OFFSET $3)";
    transaction.execute(delete_oldest, params![&account, purpose, MAX_KEPT - 1]).await?;
    let insert = "INSERT INTO challenges (digest, purpose, account, body, tries, created_at, expires_at)
        VALUES ($1, $2, $3, $4, 0, $5, $6) ON CONFLICT (digest) DO NOTHING";
    let values = params![&digest, purpose, &account, body, now, now + LIFETIME];
    Ok(transaction.execute(insert, values).await? > 0)
}

/// The subject under which wrong codes of an account's app are counted.
pub(crate) fn codes_of(account: AccountId) -> String {
    format!("codes of {account}")
}

fn read(row: &Row<'_>) -> Result<Challenge, StoreError> {
    Ok(Challenge { account: row.get(0)?, body: row.get(1)? })
}

/// Ends sign-ins that were begun with a password or factor that no longer exists.
pub(crate) async fn forget_challenges(transaction: &mut Transaction<'_>, account: AccountId) -> Result<(), StoreError> {
    transaction.execute("DELETE FROM challenges WHERE account = $1", params![&account]).await?;
    Ok(())
}

/// Challenges that ended before `$1`. The ledger runs this, with a time that two clocks confirm.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM challenges WHERE expires_at <= $1";
