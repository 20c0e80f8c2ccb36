//! What the console remembers between two requests of one sign-in: that a password was right and a second factor is to
//! follow, or a passkey's challenge. Each has a secret of which the digest is stored, ends soon, and is used up.

use std::time::Duration;

use crate::id::AccountId;
use crate::sql::{Row, Transaction, params};
use crate::token::Token;
use crate::{Store, StoreError};

const LIFETIME: Duration = Duration::from_secs(300);
/// Wrong codes for one right password.
const MAX_TRIES: u64 = 5;
/// Of one account, or of one network as long as nobody knows whose it is. Older ones make way, so that nobody can fill
/// the table, and those who have typed no password do not disturb those who have.
const MAX_KEPT: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChallengePurpose {
    /// The password was right.
    SecondFactor,
    /// To sign in with a passkey.
    Passkey,
    AddPasskey,
}

impl ChallengePurpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::SecondFactor => "second-factor",
            Self::Passkey => "passkey",
            Self::AddPasskey => "add-passkey",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Challenge {
    pub account: Option<AccountId>,
    /// Whatever its maker wants to remember.
    pub body: String,
}

impl Store {
    pub async fn create_challenge(
        &self,
        purpose: ChallengePurpose,
        account: Option<AccountId>,
        network: &str,
        body: &str,
    ) -> Result<Token, StoreError> {
        self.change_without_viewer(async |transaction| {
            let (token, now) = (Token::generate()?, transaction.now());
            let (condition, value) = match &account {
                Some(account) => ("account = $1", account.as_str()),
                None => ("account IS NULL AND network = $1", network),
            };
            let make_way = format!(
                "DELETE FROM challenges WHERE digest IN (SELECT digest FROM challenges WHERE {condition}
                    ORDER BY created_at DESC LIMIT 1000 OFFSET $2)"
            );
            transaction.execute(&make_way, params![value, MAX_KEPT - 1]).await?;
            let insert =
                "INSERT INTO challenges (digest, purpose, account, network, body, tries, created_at, expires_at)
                VALUES ($1, $2, $3, $4, $5, 0, $6, $7)";
            let (digest, purpose, expires_at) = (token.digest(), purpose.as_str(), now + LIFETIME);
            let values = params![&digest, purpose, account.as_ref(), network, body, now, expires_at];
            transaction.execute(insert, values).await?;
            Ok(token)
        })
        .await
    }

    /// Counts nothing; `None` if it has ended or was tried too often.
    pub async fn challenge(&self, purpose: ChallengePurpose, token: &Token) -> Result<Option<Challenge>, StoreError> {
        let find = "SELECT account, body FROM challenges
            WHERE digest = $1 AND purpose = $2 AND expires_at > $3 AND tries < $4";
        let (digest, mut connection) = (token.digest(), self.connection().await?);
        connection.query_optional(find, params![&digest, purpose.as_str(), self.now(), MAX_TRIES], read).await
    }

    /// Counts a try; `None` if it has ended or was tried too often.
    pub async fn try_challenge(
        &self,
        purpose: ChallengePurpose,
        token: &Token,
    ) -> Result<Option<Challenge>, StoreError> {
        let count = "UPDATE challenges SET tries = tries + 1
            WHERE digest = $1 AND purpose = $2 AND expires_at > $3 AND tries < $4 RETURNING account, body";
        self.use_challenge(count, purpose, token).await
    }

    /// Uses it up; `None` if it has ended.
    pub async fn take_challenge(
        &self,
        purpose: ChallengePurpose,
        token: &Token,
    ) -> Result<Option<Challenge>, StoreError> {
        let take = "DELETE FROM challenges
            WHERE digest = $1 AND purpose = $2 AND expires_at > $3 AND tries <= $4 RETURNING account, body";
        self.use_challenge(take, purpose, token).await
    }

    async fn use_challenge(
        &self,
        sql: &str,
        purpose: ChallengePurpose,
        token: &Token,
    ) -> Result<Option<Challenge>, StoreError> {
        self.change_without_viewer(async |transaction| {
            let digest = token.digest();
            let parameters = params![&digest, purpose.as_str(), transaction.now(), MAX_TRIES];
            transaction.query_optional(sql, parameters, read).await
        })
        .await
    }
}

fn read(row: &Row<'_>) -> Result<Challenge, StoreError> {
    Ok(Challenge { account: row.get_optional(0)?, body: row.get(1)? })
}

/// What was begun with a password or factor that is gone does not go on.
pub(crate) async fn forget_challenges(transaction: &mut Transaction<'_>, account: AccountId) -> Result<(), StoreError> {
    transaction.execute("DELETE FROM challenges WHERE account = $1", params![&account]).await?;
    Ok(())
}

/// Those that ended before `$1`. Run by the ledger: nothing is deleted on the word of one clock.
pub(crate) const DELETE_ENDED: &str = "DELETE FROM challenges WHERE expires_at <= $1";
